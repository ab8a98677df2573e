// SPDX-License-Identifier: MIT OR Apache-2.0

//! Leased frame as GStreamer memory.
//!
//! The memory is read-only; the lease ends when GStreamer drops its last reference, on any thread.
//!
//! # Safety
//!
//! GStreamer gets a plain slice of memory that another process owns. The exporter guarantees that
//! the memory does not change during the lease, and the lease lives inside the memory object.
#![allow(unsafe_code)]

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

impl AsRef<[u8]> for LeasedMemory {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the exporter does not write a leased frame, and this lease lasts as long as
        // `self.frame`.
        unsafe { self.frame.as_slice() }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Fills a slot, as an exporter does before it publishes it.
#[cfg(test)]
pub(super) fn paint(slot: &frameshare::exporter::Slot, value: u8) {
    let start = slot.as_ptr().expect("host memory is mapped");
    // SAFETY: `size()` is the length of the slot, and the test that acquired it has not published
    // it.
    unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), slot.size() as usize) }.fill(value);
}
