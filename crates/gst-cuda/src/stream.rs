//! Queues of GPU work that elements share.
//!
//! # Safety
//! Calls into the library with objects that are alive.
#![allow(unsafe_code)]

use crate::{Context, ffi, library};
use glib::translate::*;
use std::ffi::c_void;

glib::wrapper! {
    /// A GstCudaStream. It keeps its context alive.
    ///
    /// Work put on it is ordered with the context's NULL stream: GStreamer makes its streams blocking ones.
    #[derive(Debug, PartialEq, Eq, Hash)]
    pub struct Stream(Shared<ffi::GstCudaStream>);

    match fn {
        ref => |stream| gst::ffi::gst_mini_object_ref(stream.cast()),
        unref => |stream| gst::ffi::gst_mini_object_unref(stream.cast()),
        type_ => || library::loaded().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| (library.gst_cuda_stream_get_type)()),
    }
}

// SAFETY: a mini object with an atomic count of references, that nobody changes after it was made.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A stream of its own in `context`; none where the driver refuses.
    #[must_use]
    pub fn new(context: &Context) -> Option<Self> {
        // SAFETY: the context is alive; the result is NULL or a new reference.
        unsafe { from_glib_full((library::library().gst_cuda_stream_new)(context.to_glib_none().0)) }
    }

    /// The CUstream. It stays this object's.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        // SAFETY: the stream is alive.
        unsafe { (library::library().gst_cuda_stream_get_handle)(self.to_glib_none().0) }
    }

    /// The context that it was made in.
    #[must_use]
    pub fn context(&self) -> Context {
        // SAFETY: a public field that is set once, before anyone else sees the stream.
        unsafe {
            let stream: *mut ffi::GstCudaStream = self.to_glib_none().0;
            from_glib_none((*stream).context)
        }
    }
}
