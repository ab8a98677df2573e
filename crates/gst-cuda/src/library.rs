// SPDX-License-Identifier: MIT OR Apache-2.0

//! Function table of the library.
//!
//! # Safety
//! This file converts symbols to function pointers. The signatures are those of the headers of 1.24
//! and newer. Two of them differ in 1.22; a library of 1.22 is never used, since it lacks half of
//! the functions and all must be found first.
#![allow(unsafe_code)]

use crate::{
    Address,
    ffi::{GstCudaContext, GstCudaMemory, GstCudaStream, MINIMUM},
};
use glib::ffi::{GDestroyNotify, GType, gboolean, gpointer};
use gst::ffi::{GstBufferPool, GstContext, GstElement, GstMemory, GstQuery, GstStructure};
use gst_video::ffi::GstVideoInfo;
use libloading::Library as File;
use once_cell::sync::OnceCell;
use std::ffi::{c_int, c_uint, c_void};

const FILE: &str = "libgstcuda-1.0.so.0";

/// Reason why CUDA memory is not available in GStreamer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The library is not installed.
    #[error("CUDA memory needs GStreamer {MINIMUM} or newer with its CUDA library: {reason}")]
    Absent {
        /// The loader's message.
        reason: String,
    },
    /// The installed library is too old.
    #[error(
        "CUDA memory needs GStreamer {MINIMUM} or newer: the installed {FILE} is older and lacks {lacks}"
    )]
    TooOld {
        /// A function that newer versions have.
        lacks: &'static str,
    },
    /// The library found no usable driver.
    #[error("CUDA memory needs the NVIDIA driver: GStreamer found no usable libcuda.so.1")]
    NoDriver,
}

macro_rules! table {
    ($(fn $symbol:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The resolved functions.
        pub(crate) struct Library {
            $(pub(crate) $symbol: unsafe extern "C" fn($($arg: $ty),*) $(-> $result)?,)*
        }

        impl Library {
            fn resolve(file: &File) -> Result<Self, Unavailable> {
                Ok(Self {
                    $(
                        // SAFETY: the type matches the declaration in the headers of 1.24 and
                        // newer.
                        $symbol: *unsafe { file.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                            .map_err(|_| Unavailable::TooOld { lacks: stringify!($symbol) })?,
                    )*
                })
            }
        }
    };
}

table! {
    // First, so that errors name it: its absence is the clearest sign of an old library.
    fn gst_cuda_stream_new(context: *mut GstCudaContext) -> *mut GstCudaStream;
    fn gst_cuda_stream_get_type() -> GType;
    fn gst_cuda_stream_get_handle(stream: *mut GstCudaStream) -> *mut c_void;

    fn gst_cuda_load_library() -> gboolean;
    fn gst_cuda_memory_init_once();

    fn gst_cuda_context_get_type() -> GType;
    fn gst_cuda_context_new(device: c_uint) -> *mut GstCudaContext;
    fn gst_cuda_context_get_handle(context: *mut GstCudaContext) -> gpointer;
    fn gst_cuda_context_get_texture_alignment(context: *mut GstCudaContext) -> c_int;
    fn gst_cuda_ensure_element_context(
        element: *mut GstElement,
        device: c_int,
        context: *mut *mut GstCudaContext,
    ) -> gboolean;
    fn gst_cuda_handle_set_context(
        element: *mut GstElement,
        offered: *mut GstContext,
        device: c_int,
        context: *mut *mut GstCudaContext,
    ) -> gboolean;
    fn gst_cuda_handle_context_query(
        element: *mut GstElement,
        query: *mut GstQuery,
        context: *mut GstCudaContext,
    ) -> gboolean;

    fn gst_is_cuda_memory(memory: *mut GstMemory) -> gboolean;
    fn gst_cuda_memory_get_stream(memory: *mut GstCudaMemory) -> *mut GstCudaStream;
    fn gst_cuda_memory_sync(memory: *mut GstCudaMemory);
    fn gst_cuda_memory_set_from_fixed_pool(memory: *mut GstMemory);
    fn gst_cuda_memory_is_from_fixed_pool(memory: *mut GstMemory) -> gboolean;
    fn gst_cuda_allocator_alloc(
        allocator: gpointer,
        context: *mut GstCudaContext,
        stream: *mut GstCudaStream,
        info: *const GstVideoInfo,
    ) -> *mut GstMemory;
    fn gst_cuda_allocator_alloc_wrapped(
        allocator: gpointer,
        context: *mut GstCudaContext,
        stream: *mut GstCudaStream,
        info: *const GstVideoInfo,
        address: Address,
        user_data: gpointer,
        notify: GDestroyNotify,
    ) -> *mut GstMemory;

    fn gst_cuda_buffer_pool_get_type() -> GType;
    fn gst_cuda_buffer_pool_new(context: *mut GstCudaContext) -> *mut GstBufferPool;
    fn gst_buffer_pool_config_get_cuda_stream(config: *mut GstStructure) -> *mut GstCudaStream;
    fn gst_buffer_pool_config_set_cuda_stream(config: *mut GstStructure, stream: *mut GstCudaStream);
}

static LIBRARY: OnceCell<Library> = OnceCell::new();

/// Loads the library and checks that it finds a driver, once.
///
/// # Errors
/// [`Unavailable`] with the missing part. After an error, a later call tries again.
pub fn load() -> Result<(), Unavailable> {
    LIBRARY.get_or_try_init(find).map(|_| ())
}

/// Returns the library if [`load`] has succeeded.
pub(crate) fn loaded() -> Option<&'static Library> {
    LIBRARY.get()
}

/// Returns the library, for callers that hold an object of it.
pub(crate) fn library() -> &'static Library {
    loaded().expect("an object of the library exists only once it was loaded")
}

/// GStreamer's plugin of CUDA elements, linked to the library.
const PLUGIN: &str = "nvcodec";

/// Maps the file of the running GStreamer's plugin, and with it the library that belongs to it. If
/// two GStreamer versions are installed, the soname alone may resolve to the library of the other
/// one. A library that is already loaded is found by its soname (dlopen(3)).
///
/// The plugin is not initialized, which takes more than a second: it probes every decoder and
/// encoder of every GPU.
fn map_plugin() {
    // SAFETY: takes no arguments, and may be called before GStreamer is initialized.
    if unsafe { gst::ffi::gst_is_initialized() } == glib::ffi::GFALSE {
        return;
    }
    let file = gst::Registry::get().find_plugin(PLUGIN).and_then(|plugin| plugin.filename());
    // SAFETY: GStreamer loads the same file when an element of the plugin is made; this crate does
    // not depend on its initializers.
    match file.map(|file| unsafe { File::new(file) }) {
        // GStreamer keeps the code of its plugins mapped, too.
        Some(Ok(file)) => std::mem::forget(file),
        Some(Err(error)) => gst::debug!(
            gst::CAT_RUST,
            "loading {FILE} from the system's default path, since plugin {PLUGIN} cannot be mapped: {}",
            loader_says(&error)
        ),
        None => {}
    }
}

fn find() -> Result<Library, Unavailable> {
    map_plugin();
    // SAFETY: the library's initializers are made to run in any process that loads it; this crate
    // does not depend on them.
    let file =
        unsafe { File::new(FILE) }.map_err(|error| Unavailable::Absent { reason: loader_says(&error) })?;
    let library = Library::resolve(&file);
    // The library registers GLib types, which are permanent: its code must stay mapped.
    std::mem::forget(file);
    let library = library?;
    // SAFETY: both take no arguments, and may be called from any thread, any number of times.
    unsafe {
        if (library.gst_cuda_load_library)() == glib::ffi::GFALSE {
            return Err(Unavailable::NoDriver);
        }
        (library.gst_cuda_memory_init_once)();
    }
    Ok(library)
}

/// Returns the loader's own message, which the error carries as its source.
fn loader_says(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_library_is_an_error() {
        match load() {
            Ok(()) => assert!(loaded().is_some()),
            Err(error) => {
                assert!(loaded().is_none());
                assert!(error.to_string().starts_with("CUDA memory needs "), "{error}");
            }
        }
    }

    #[test]
    fn old_library_error_names_missing_function() {
        // The C library stands in for a library without any of the functions.
        // SAFETY: it is already loaded, so no initializers run.
        let file = unsafe { File::new("libc.so.6") }.unwrap();
        let error = Library::resolve(&file).err().unwrap();
        assert_eq!(error, Unavailable::TooOld { lacks: "gst_cuda_stream_new" });
        assert!(error.to_string().contains("1.24"), "{error}");
    }
}
