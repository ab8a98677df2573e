// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA streams shared by elements.
//!
//! # Safety
//! This file calls the library with live objects.
#![allow(unsafe_code)]

use crate::{Context, ffi, library};
use glib::translate::*;
use std::ffi::c_void;

glib::wrapper! {
    /// A reference to a GstCudaStream. It keeps its context alive.
    ///
    /// Its work is ordered with the context's NULL stream, since GStreamer creates blocking
    /// streams.
    #[derive(Debug, PartialEq, Eq, Hash)]
    pub struct Stream(Shared<ffi::GstCudaStream>);

    match fn {
        ref => |stream| gst::ffi::gst_mini_object_ref(stream.cast()),
        unref => |stream| gst::ffi::gst_mini_object_unref(stream.cast()),
        type_ => || {
            library::loaded().map_or(glib::gobject_ffi::G_TYPE_INVALID, |library| {
                (library.gst_cuda_stream_get_type)()
            })
        },
    }
}

// SAFETY: a mini object with an atomic reference count, immutable after creation.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// Creates a stream in `context`; `None` if the driver fails.
    #[must_use]
    pub fn new(context: &Context) -> Option<Self> {
        // SAFETY: the context is alive; the result is NULL or a new reference.
        unsafe { from_glib_full((library::library().gst_cuda_stream_new)(context.to_glib_none().0)) }
    }

    /// Returns the CUstream, valid as long as this object.
    #[must_use]
    pub fn handle(&self) -> *mut c_void {
        // SAFETY: the stream is alive.
        unsafe { (library::library().gst_cuda_stream_get_handle)(self.to_glib_none().0) }
    }

    /// Returns the context of the stream.
    #[must_use]
    pub fn context(&self) -> Context {
        // SAFETY: a public field that is set once, before the stream is shared.
        unsafe {
            let stream: *mut ffi::GstCudaStream = self.to_glib_none().0;
            from_glib_none((*stream).context)
        }
    }
}
