//! A frame of the exporter as GStreamer memory.
//!
//! The memory is read-only; the lease ends when GStreamer drops its last reference, in whatever thread that is.
//!
//! # Safety
//!
//! GStreamer is handed a plain slice of memory that another process owns. That it does not change is the
//! exporter's promise for as long as the lease lasts, and the lease lives inside the memory object.
#![allow(unsafe_code)]

use frameshare::{memory::Address, reader::Frame};
use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// A frame, counted among those that are held.
pub(super) struct Lease {
    frame: Frame,
    _counted: Counted,
}

struct Counted(Arc<AtomicU32>);

impl Lease {
    /// Takes a frame over.
    pub fn new(frame: Frame, held: &Arc<AtomicU32>) -> Self {
        held.fetch_add(1, Relaxed);
        Self { frame, _counted: Counted(Arc::clone(held)) }
    }

    /// The memory through which a frame in host memory goes downstream.
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

    /// Where it lies on the GPU, if it does.
    pub fn address(&self) -> Option<u64> {
        match self.frame.address() {
            Address::Device(address) => Some(address),
            Address::Host(_) => None,
        }
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the exporter writes no frame that is leased, and this frame's lease lasts as long as `self.frame`.
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
    let start = slot.as_ptr().expect("host memory has an address");
    // SAFETY: the slot is as long as it says, and the test that acquired it has not published it.
    unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), slot.size() as usize) }.fill(value);
}
