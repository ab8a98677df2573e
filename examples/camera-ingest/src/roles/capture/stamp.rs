// SPDX-License-Identifier: MIT OR Apache-2.0

//! Capture times of units and frames.

use crate::clock::{CLOCK, ns_since_1970};
use std::sync::{Mutex, PoisonError};

/// Puts capture times on buffers: ns since 1970, strictly increasing, in a
/// GstReferenceTimestampMeta with the caps `timestamp/x-unix`.
pub struct Stamps {
    caps: gst::Caps,
    last: Mutex<u64>,
}

impl Stamps {
    pub fn new() -> Self {
        Self { caps: gst::Caps::new_empty_simple(CLOCK), last: Mutex::new(0) }
    }

    /// Replaces the capture time of a buffer by the present time.
    pub fn stamp(&self, buffer: &mut gst::BufferRef) {
        let now = ns_since_1970();
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = now.max(*last + 1);
        while let Some(meta) = buffer.meta_mut::<gst::ReferenceTimestampMeta>() {
            if meta.remove().is_err() {
                break;
            }
        }
        let time = gst::ClockTime::from_nseconds(*last);
        gst::ReferenceTimestampMeta::add(buffer, &self.caps, time, gst::ClockTime::NONE);
    }
}
