// SPDX-License-Identifier: MIT OR Apache-2.0

//! Units of encoded streams that have a decoding time only, as those of AVI files and elementary
//! streams.
//!
//! `GstBaseSrc` gives such a unit its decoding time as its presentation time (GStreamer 1.22 to
//! 1.28), at which it would be shown in the wrong place: a wrong time is worse than none, which
//! parsers and decoders find by themselves. A probe behind the base class takes it out.

use super::imp::FrameshareSrc;
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Both are set and read by the streaming thread.
#[derive(Debug, Default)]
pub(super) struct Timeless {
    /// The probe is added, with the first such unit.
    has_probe: AtomicBool,
    /// The buffer that is about to be pushed is such a unit.
    is_next: AtomicBool,
}

impl FrameshareSrc {
    /// Lets a buffer that is about to be pushed stay without a presentation time, if it has a
    /// decoding time only.
    pub(super) fn keep_timeless(&self, buffer: &gst::Buffer) {
        let is_timeless = buffer.pts().is_none() && buffer.dts().is_some();
        self.timeless.is_next.store(is_timeless, Relaxed);
        if !is_timeless || self.timeless.has_probe.swap(true, Relaxed) {
            return;
        }
        let source = self.downgrade();
        let probe = move |_: &gst::Pad, info: &mut gst::PadProbeInfo<'_>| {
            if let (Some(source), Some(gst::PadProbeData::Buffer(buffer))) =
                (source.upgrade(), &mut info.data)
                && source.timeless.is_next.load(Relaxed)
            {
                buffer.make_mut().set_pts(None);
            }
            gst::PadProbeReturn::Ok
        };
        self.obj().src_pad().add_probe(gst::PadProbeType::BUFFER, probe);
    }
}
