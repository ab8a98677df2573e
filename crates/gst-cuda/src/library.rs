//! The table of the library's functions.
//!
//! # Safety
//! This file turns symbols into function pointers. The signatures are those of the headers of 1.24 and newer; two of them
//! were different in 1.22, which is why none is used before all were found: 1.22 lacks half of them.
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

/// Why there is no CUDA memory in GStreamer here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The library is not installed.
    #[error("CUDA memory needs GStreamer {MINIMUM} or newer with its CUDA library: {reason}")]
    Absent {
        /// The loader's own words.
        reason: String,
    },
    /// The library is an old one.
    #[error(
        "CUDA memory needs GStreamer {MINIMUM} or newer: the {FILE} that is installed is older, it lacks {lacks}"
    )]
    TooOld {
        /// A function that newer ones have.
        lacks: &'static str,
    },
    /// The library finds no driver.
    #[error("CUDA memory needs NVIDIA's driver: GStreamer finds no libcuda.so.1 that it can use")]
    NoDriver,
}

macro_rules! table {
    ($(fn $symbol:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The functions.
        pub(crate) struct Library {
            $(pub(crate) $symbol: unsafe extern "C" fn($($arg: $ty),*) $(-> $result)?,)*
        }

        impl Library {
            fn resolve(file: &File) -> Result<Self, Unavailable> {
                Ok(Self {
                    $(
                        // SAFETY: the type is the one that the headers of 1.24 and newer declare for this symbol.
                        $symbol: *unsafe { file.get(concat!(stringify!($symbol), "\0").as_bytes()) }
                            .map_err(|_| Unavailable::TooOld { lacks: stringify!($symbol) })?,
                    )*
                })
            }
        }
    };
}

table! {
    // First, since its absence is what tells an old library best.
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

/// Finds the library and the driver, once.
///
/// # Errors
/// What is missing. A later call looks again.
pub fn load() -> Result<(), Unavailable> {
    LIBRARY.get_or_try_init(find).map(|_| ())
}

/// The library, if [`load`] has found it.
pub(crate) fn loaded() -> Option<&'static Library> {
    LIBRARY.get()
}

/// The library, for callers that hold an object of it.
pub(crate) fn library() -> &'static Library {
    loaded().expect("an object of the library exists only once it was loaded")
}

/// GStreamer's plugin of CUDA elements, which links to the library.
const PLUGIN: &str = "nvcodec";

/// Loads the plugin of the GStreamer that runs, and with it the library that this one was built with: where two GStreamers
/// are installed, the soname alone may name the other one's. A library that is loaded is found by its soname (dlopen(3)).
fn load_plugin() {
    // SAFETY: takes nothing, and may be called before GStreamer is initialised.
    if unsafe { gst::ffi::gst_is_initialized() } == glib::ffi::GFALSE {
        return;
    }
    if let Err(error) = gst::Plugin::load_by_name(PLUGIN) {
        gst::debug!(gst::CAT_RUST, "{FILE} is taken from the system's folders: {PLUGIN}: {error}");
    }
}

fn find() -> Result<Library, Unavailable> {
    load_plugin();
    // SAFETY: the library's initialisers are made to be run by whoever loads it; nothing of ours depends on them.
    let file =
        unsafe { File::new(FILE) }.map_err(|error| Unavailable::Absent { reason: loader_says(&error) })?;
    let library = Library::resolve(&file);
    // It registers types with GLib, which outlive everything: its code must stay where it is.
    std::mem::forget(file);
    let library = library?;
    // SAFETY: both take nothing, and may be called from any thread, any number of times.
    unsafe {
        if (library.gst_cuda_load_library)() == glib::ffi::GFALSE {
            return Err(Unavailable::NoDriver);
        }
        (library.gst_cuda_memory_init_once)();
    }
    Ok(library)
}

/// The loader's own words, which the error keeps behind a headline.
fn loader_says(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_an_answer() {
        match load() {
            Ok(()) => assert!(loaded().is_some()),
            Err(error) => {
                assert!(loaded().is_none());
                assert!(error.to_string().starts_with("CUDA memory needs "), "{error}");
            }
        }
    }

    #[test]
    fn an_old_library_is_told_by_what_it_lacks() {
        // The C library stands for one that has none of the functions.
        // SAFETY: it is loaded already, and has no initialisers to run again.
        let file = unsafe { File::new("libc.so.6") }.unwrap();
        let error = Library::resolve(&file).err().unwrap();
        assert_eq!(error, Unavailable::TooOld { lacks: "gst_cuda_stream_new" });
        assert!(error.to_string().contains("1.24"), "{error}");
    }
}
