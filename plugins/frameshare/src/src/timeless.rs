// SPDX-License-Identifier: MIT OR Apache-2.0

//! Units of encoded streams that have a decoding time only, as those of AVI files and elementary
//! streams.
//!
//! `GstBaseSrc` gives such a unit its decoding time as its presentation time (GStreamer 1.22 to
//! 1.28), at which it would be shown in the wrong place: a wrong time is worse than none, which
//! parsers and decoders find by themselves. A probe behind the base class takes it out.

use gst::prelude::*;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Both values are set and read by the streaming thread.
#[derive(Debug, Default)]
pub(super) struct Timeless {
    /// The probe is added, with the first such unit.
    has_probe: AtomicBool,
    /// The buffer that is about to be pushed is such a unit.
    is_next: Arc<AtomicBool>,
}

impl Timeless {
    /// Lets a buffer that is about to be pushed on a pad stay without a presentation time, if it
    /// has a decoding time only.
    pub fn keep(&self, pad: &gst::Pad, buffer: &gst::Buffer) {
        let is_timeless = buffer.pts().is_none() && buffer.dts().is_some();
        self.is_next.store(is_timeless, Relaxed);
        if !is_timeless || self.has_probe.swap(true, Relaxed) {
            return;
        }
        let is_next = self.is_next.clone();
        pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data
                && is_next.load(Relaxed)
            {
                buffer.make_mut().set_pts(None);
            }
            gst::PadProbeReturn::Ok
        });
    }
}
