// SPDX-License-Identifier: MIT OR Apache-2.0

//! Callback of `FrameshareMeta`: names a stream on which a frame is read.
//!
//! # Safety
//!
//! The application passes a buffer that it holds and one of its streams.
#![allow(unsafe_code)]

use frameshare::reader::Frame;
use glib::ffi::{GFALSE, GTRUE, gboolean, gpointer};
use std::{panic::catch_unwind, sync::Arc};

/// Memory that was lent to GStreamer's CUDA library and holds a frame.
pub(crate) trait HoldsFrame: Send + Sync + 'static {
    fn frame(&self) -> &Frame;
}

/// See [`crate::FrameshareMeta::used_on`]. Returns true if the buffer has a frame in GPU memory;
/// its release then waits for the stream.
///
/// # Safety
/// `buffer` must be a buffer that the caller holds, and `stream` a CUstream, or null for the NULL
/// stream of the context that is current on this thread; stream and context must live until the
/// last reference to the buffer's memory is dropped.
pub(crate) unsafe extern "C" fn used_on<T: HoldsFrame>(
    buffer: *mut gst::ffi::GstBuffer,
    stream: gpointer,
) -> gboolean {
    if buffer.is_null() {
        return GFALSE;
    }
    // SAFETY: the caller holds the buffer.
    let buffer = unsafe { gst::BufferRef::from_ptr(buffer) };
    let named = catch_unwind(|| {
        let Some(lease) = buffer.iter_memories().find_map(gst_cuda::memory::held::<Arc<T>>) else {
            return false;
        };
        // SAFETY: the caller keeps the stream alive until the last reference to the memory, and so
        // the frame, is dropped.
        let named = unsafe { lease.frame().used_on_handle(stream) };
        named.inspect_err(|error| log::error!("cannot register the stream: {error}")).is_ok()
    });
    if matches!(named, Ok(true)) { GTRUE } else { GFALSE }
}
