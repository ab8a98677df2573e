// SPDX-License-Identifier: MIT OR Apache-2.0

//! Registration of streams of other CUDA contexts that an application reads frames on.
//!
//! # Safety
//! Callback of `FrameshareMeta`: the application passes a buffer that it holds and one of its
//! streams.
#![allow(unsafe_code)]

use crate::src::{leased_memory::LeasedMemory, log::CAT};
use glib::ffi::{GFALSE, GTRUE, gboolean, gpointer};
use std::{panic::catch_unwind, sync::Arc};

/// See [`crate::FrameshareMeta::used_on`]. Returns true if the buffer has a frame in GPU memory;
/// its release then waits for the stream.
///
/// # Safety
/// `buffer` must be a buffer that the caller holds, and `stream` a CUstream, or null for the NULL
/// stream of the context that is current on this thread; stream and context must live until the
/// last reference to the buffer's memory is dropped.
pub(in crate::src) unsafe extern "C" fn used_on(
    buffer: *mut gst::ffi::GstBuffer,
    stream: gpointer,
) -> gboolean {
    if buffer.is_null() {
        return GFALSE;
    }
    // SAFETY: the caller holds the buffer.
    let buffer = unsafe { gst::BufferRef::from_ptr(buffer) };
    let named = catch_unwind(|| {
        let Some(lease) = buffer.iter_memories().find_map(gst_cuda::memory::held::<Arc<LeasedMemory>>) else {
            return false;
        };
        // SAFETY: the caller keeps the stream alive until the last reference to the memory, and so
        // the frame, is dropped.
        let named = unsafe { lease.frame().used_on_handle(stream) };
        named.inspect_err(|error| gst::error!(CAT, "Cannot register the stream: {error}")).is_ok()
    });
    if matches!(named, Ok(true)) { GTRUE } else { GFALSE }
}
