// SPDX-License-Identifier: MIT OR Apache-2.0

//! Capture times of units and frames.

use std::{
    sync::{Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

/// Puts capture times on buffers: ns since 1970, strictly increasing, in a
/// GstReferenceTimestampMeta with the caps `timestamp/x-unix`.
pub struct Stamps {
    caps: gst::Caps,
    last: Mutex<u64>,
}

impl Stamps {
    pub fn new() -> Self {
        Self { caps: gst::Caps::new_empty_simple("timestamp/x-unix"), last: Mutex::new(0) }
    }

    /// Replaces the capture time of a buffer by the present time.
    pub fn stamp(&self, buffer: &mut gst::BufferRef) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
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
