// SPDX-License-Identifier: MIT OR Apache-2.0

//! GStreamer's CUDA objects, as the engine uses them.
//!
//! # Safety
//!
//! Handles are passed on along with the object that keeps them alive.
#![allow(unsafe_code)]

use frameshare_cuda::{context::Context, stream::Stream};
use std::sync::Arc;

/// Wraps a context that an element shares with its neighbors.
pub(crate) fn engine_context(context: &gst_cuda::Context) -> frameshare_cuda::Result<Arc<Context>> {
    // SAFETY: the CUcontext lives as long as the object, a reference to which is handed over.
    unsafe { Context::handed_in(context.handle(), context.clone()) }
}

/// Wraps a stream of such a context.
pub(crate) fn engine_stream(context: &Arc<Context>, stream: &gst_cuda::Stream) -> Stream {
    // SAFETY: the CUstream is one of the context, and lives as long as the object, a reference to
    // which is handed over.
    unsafe { Stream::handed_in(context, stream.handle(), stream.clone()) }
}

/// The NULL stream of a context, which waits for all streams that GStreamer makes, and they for it.
pub(crate) fn null_stream(context: &Arc<Context>) -> Stream {
    // SAFETY: NULL is the context's own stream, which lives as long as it.
    unsafe { Stream::handed_in(context, std::ptr::null_mut(), ()) }
}
