//! A frame of the exporter as GStreamer memory.
//!
//! The memory is read-only; the lease ends when GStreamer drops its last reference, in whatever thread that is.
//!
//! # Safety
//!
//! GStreamer is handed a plain slice of memory that another process owns. That it does not change is the
//! exporter's promise for as long as the lease lasts, and the lease lives inside the memory object.
#![allow(unsafe_code)]

use frameshare::reader::{Frame, Reader};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU32, Ordering::Relaxed},
};

/// What the frames of one connection that are out have in common.
///
/// The exporter takes all frames back from a reader that leaves, so a reader that is not needed any more stays
/// until the last of its frames is gone.
#[derive(Debug, Default)]
pub(super) struct Out {
    parked: Mutex<Option<Reader>>,
}

impl Out {
    /// Has a reader leave with the last frame; that is at once if none is out.
    pub fn park(self: Arc<Self>, reader: Reader) {
        *self.parked.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader);
    }
}

/// A frame, counted among those that are held.
pub(super) struct Lease {
    // Dropped in this order: the lease ends before its reader leaves.
    frame: Frame,
    _out: Arc<Out>,
    held: Arc<AtomicU32>,
}

impl Lease {
    /// Takes a frame over.
    pub fn new(frame: Frame, out: &Arc<Out>, held: &Arc<AtomicU32>) -> Self {
        held.fetch_add(1, Relaxed);
        Self { frame, _out: Arc::clone(out), held: Arc::clone(held) }
    }

    /// The memory through which the frame goes downstream.
    pub fn into_memory(self) -> gst::Memory {
        gst::Memory::from_slice(self)
    }
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the exporter writes no frame that is leased, and this frame's lease lasts as long as `self.frame`.
        unsafe { self.frame.as_slice() }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.held.fetch_sub(1, Relaxed);
    }
}
