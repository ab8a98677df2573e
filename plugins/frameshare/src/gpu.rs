//! GStreamer's CUDA objects, as the engine uses them.
//!
//! # Safety
//! Handles are passed on along with the object that keeps them alive.
#![allow(unsafe_code)]

use frameshare::cuda::{self, context::Context, stream::Stream};
use std::{sync::Arc, time::Duration};

/// How long an element that stops waits for the GPU to be done with what was shared, and for readers to close it: behind a
/// stream that is stuck the one never is, and a reader that is paused does not.
pub(crate) const SETTLED: Duration = Duration::from_millis(200);

/// A context that an element shares with its neighbours.
pub(crate) fn engine_context(context: &gst_cuda::Context) -> cuda::Result<Arc<Context>> {
    // SAFETY: the CUcontext lives as long as the object, of which a reference comes along.
    unsafe { Context::handed_in(context.handle(), context.clone()) }
}

/// A stream of such a context.
pub(crate) fn engine_stream(context: &Arc<Context>, stream: &gst_cuda::Stream) -> Stream {
    // SAFETY: the CUstream is one of the context, and lives as long as the object, of which a reference comes along.
    unsafe { Stream::handed_in(context, stream.handle(), stream.clone()) }
}

/// The NULL stream of a context, which waits for all streams that GStreamer makes, and they for it.
pub(crate) fn null_stream(context: &Arc<Context>) -> Stream {
    // SAFETY: NULL is the context's own stream, which lives as long as it.
    unsafe { Stream::handed_in(context, std::ptr::null_mut(), ()) }
}

/// Lets the GPU and readers finish with what elements have given up, so that one that has stopped leaves no context behind.
/// For elements that had one: what others of the process still wait for holds nobody else up.
pub(crate) fn settle() {
    frameshare::wait_until_given_up(SETTLED);
}
