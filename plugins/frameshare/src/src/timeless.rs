// SPDX-License-Identifier: MIT OR Apache-2.0

//! Buffers without a presentation time: units of AVI files and elementary streams, which have a
//! decoding time only, and those without any time.
//!
//! `GstBaseSrc` gives the former their decoding time as their presentation time, and the first
//! buffer of the latter the start of the segment (GStreamer 1.22 to 1.28). A wrong time is worse
//! than none, which parsers and decoders find by themselves. A probe behind the base class puts
//! back what the buffer had, unless `do-timestamp` asks for times.

use gst::prelude::*;
use gst_base::prelude::*;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Both values are set and read by the streaming thread.
#[derive(Debug, Default)]
pub(super) struct Timeless {
    /// The probe is added, with the first such buffer.
    has_probe: AtomicBool,
    /// The decoding time, or its lack, of a buffer that is about to be pushed without a
    /// presentation time.
    next: Arc<Mutex<Option<Option<gst::ClockTime>>>>,
}

impl Timeless {
    /// Lets a buffer that a source is about to push stay without a presentation time, if it has
    /// none.
    pub fn keep(&self, source: &gst_base::BaseSrc, buffer: &gst::Buffer) {
        let is_timeless = buffer.pts().is_none() && !source.does_timestamp();
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = is_timeless.then(|| buffer.dts());
        if !is_timeless || self.has_probe.swap(true, Relaxed) {
            return;
        }
        let next = self.next.clone();
        source.src_pad().add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data
                && let Some(dts) = *next.lock().unwrap_or_else(PoisonError::into_inner)
                && (buffer.pts(), buffer.dts()) != (None, dts)
            {
                let buffer = buffer.make_mut();
                buffer.set_pts(None);
                buffer.set_dts(dts);
            }
            gst::PadProbeReturn::Ok
        });
    }
}
