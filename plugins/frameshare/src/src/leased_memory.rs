// SPDX-License-Identifier: MIT OR Apache-2.0

//! Leased frame as GStreamer memory.
//!
//! The memory is read-only; the lease ends when GStreamer drops its last reference, on any thread.

use crate::ffi::{frame_bytes, used_on::HoldsFrame};
use frameshare::{memory::Address, reader::Frame};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// Leased frame, counted in `held`.
pub(super) struct LeasedMemory {
    frame: Frame,
    _counted: Counted,
}

struct Counted(Arc<AtomicU32>);

impl LeasedMemory {
    /// Takes ownership of a frame.
    pub fn new(frame: Frame, held: &Arc<AtomicU32>) -> Self {
        held.fetch_add(1, Relaxed);
        Self { frame, _counted: Counted(Arc::clone(held)) }
    }

    /// Returns the memory to push downstream; for frames in host memory.
    pub fn into_memory(self) -> gst::Memory {
        gst::Memory::from_slice(self)
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
