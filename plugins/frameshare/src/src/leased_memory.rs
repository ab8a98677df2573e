// SPDX-License-Identifier: MIT OR Apache-2.0

//! Leased frame as GStreamer memory.
//!
//! The memory is read-only; the lease ends when GStreamer drops its last reference, on any thread.

use crate::ffi::{frame_bytes, leased, used_on::HoldsFrame};
use frameshare::{
    memory::Address,
    reader::{Frame, ReaderCopy},
};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// Leased frame, counted in `held`.
pub(super) struct LeasedMemory {
    frame: Frame,
    copies: Arc<AtomicU64>,
    _counted: Counted,
}

struct Counted(Arc<AtomicU32>);

impl LeasedMemory {
    /// Takes ownership of a frame, which is counted in `held` while it exists; `copies` counts
    /// those that elements make of it.
    pub fn new(frame: Frame, held: &Arc<AtomicU32>, copies: &Arc<AtomicU64>) -> Self {
        held.fetch_add(1, Relaxed);
        Self { frame, copies: Arc::clone(copies), _counted: Counted(Arc::clone(held)) }
    }

    /// Returns the memory to push downstream; for frames in host memory.
    pub fn into_memory(self) -> Result<gst::Memory, glib::BoolError> {
        leased::wrap(Box::new(self)).ok_or_else(|| glib::bool_error!("no memory for a frame"))
    }

    pub fn frame(&self) -> &Frame {
        &self.frame
    }

    #[cfg(test)]
    pub fn into_frame(self) -> Frame {
        self.frame
    }

    /// Returns the GPU address, if the frame is in GPU memory.
    pub fn address(&self) -> Option<u64> {
        match self.frame.address() {
            Address::Device(address) => Some(address),
            Address::Host(_) => None,
        }
    }
}

impl leased::Leased for LeasedMemory {
    fn frame(&self) -> &Frame {
        &self.frame
    }

    fn note_copy(&self) {
        self.copies.fetch_add(1, Relaxed);
        self.frame.count_copy(ReaderCopy::Downstream);
    }
}

impl HoldsFrame for LeasedMemory {
    fn frame(&self) -> &Frame {
        &self.frame
    }
}

impl AsRef<[u8]> for LeasedMemory {
    fn as_ref(&self) -> &[u8] {
        frame_bytes::of(&self.frame)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
