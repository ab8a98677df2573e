// SPDX-License-Identifier: MIT OR Apache-2.0

//! Base class of pools of CUDA memory.
//!
//! NVIDIA's decoders and the `cuda*` elements accept a neighbor's pool only if it is a
//! GstCudaBufferPool, and most of them only if it is in their own context. Subclasses of
//! [`BufferPool`] must override all of `set_config` (see [`set_config`]), `start`, `stop` and
//! `alloc_buffer`: the library's implementations use an allocator that such a pool does not have.
//! The class is registered on first use, after [`crate::load`].
//!
//! # Safety
//! This file uses public fields and functions of the library's and GStreamer's classes, with live
//! objects.
#![allow(unsafe_code)]

use crate::{
    Context, Stream,
    ffi::{GstCudaBufferPool, GstCudaBufferPoolClass},
    library,
};
use glib::{prelude::*, subclass::prelude::*, translate::*};
use gst::subclass::prelude::*;

glib::wrapper! {
    /// A reference to a GstCudaBufferPool.
    pub struct BufferPool(Object<GstCudaBufferPool, GstCudaBufferPoolClass>)
        @extends gst::BufferPool, gst::Object;

    match fn {
        type_ => || {
            library::loaded().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| {
                (library.gst_cuda_buffer_pool_get_type)()
            })
        },
    }
}

// SAFETY: pools may be used from any thread.
unsafe impl Send for BufferPool {}
// SAFETY: as above.
unsafe impl Sync for BufferPool {}

// SAFETY: the class struct begins with GstBufferPool's and adds nothing to it.
unsafe impl<T: BufferPoolImpl> IsSubclassable<T> for BufferPool {}

impl BufferPool {
    /// Creates a pool of the library's own memory in `context`.
    #[must_use]
    pub fn new(context: &Context) -> Self {
        // SAFETY: the context is alive; the result is a new reference.
        unsafe {
            from_glib_full((library::library().gst_cuda_buffer_pool_new)(context.to_glib_none().0).cast())
        }
    }
}

/// Sets the context of a new pool's buffers. Call once, before the pool is shared.
pub fn set_context(pool: &impl IsA<BufferPool>, context: &Context) {
    let pool: *mut GstCudaBufferPool = pool.as_ref().to_glib_none().0;
    // SAFETY: a public field; the library's own constructor sets it the same way, and `dispose`
    // drops its reference.
    unsafe {
        let old: Option<Context> = from_glib_full((*pool).context);
        (*pool).context = context.to_glib_full();
        drop(old);
    }
}

/// Calls GstBufferPool's own `set_config` and bypasses GstCudaBufferPool's, which would allocate.
pub fn set_config<T: BufferPoolImpl>(pool: &T, config: &mut gst::BufferPoolConfigRef) -> bool {
    let Some(class) = glib::Class::<gst::BufferPool>::from_type(gst::BufferPool::static_type()) else {
        return false;
    };
    let Some(set_config) = class.as_ref().set_config else { return false };
    let pool = pool.obj();
    // SAFETY: `pool` is a GstBufferPool, and the configuration is borrowed mutably.
    unsafe {
        let pool = pool.upcast_ref::<gst::BufferPool>().to_glib_none().0;
        set_config(pool, config.as_mut().as_mut_ptr()) != glib::ffi::GFALSE
    }
}

/// Returns the stream that the buffers of a pool are written on, if the configuration has one.
#[must_use]
pub fn stream(config: &gst::BufferPoolConfigRef) -> Option<Stream> {
    let library = library::loaded()?;
    let config = AsRef::<gst::StructureRef>::as_ref(config);
    // SAFETY: the configuration is only read; the result is NULL or a new reference.
    unsafe { from_glib_full((library.gst_buffer_pool_config_get_cuda_stream)(config.as_ptr().cast_mut())) }
}

/// Sets the stream that the buffers of a pool are written on.
pub fn set_stream(config: &mut gst::BufferPoolConfigRef, stream: &Stream) {
    let config = AsMut::<gst::StructureRef>::as_mut(config);
    // SAFETY: the configuration is borrowed mutably, and takes its own reference.
    unsafe {
        let set = library::library().gst_buffer_pool_config_set_cuda_stream;
        set(config.as_mut_ptr(), stream.to_glib_none().0);
    }
}
