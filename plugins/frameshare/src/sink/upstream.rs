// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events of readers, on their way to upstream.

use super::{imp::FrameshareSink, log::CAT, qos::Summary};
use crate::{sync::lock, upstream};
use frameshare::{exporter::ReaderInfo, upstream::UpstreamEvent};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::time::Instant;

impl FrameshareSink {
    /// Handles an event of a reader; called on the exporter's threads.
    pub(super) fn take_upstream(&self, reader: &ReaderInfo, event: &UpstreamEvent) {
        match event {
            UpstreamEvent::Qos(qos) => {
                let summary = lock(&self.qos).report(reader.id, *qos, Instant::now());
                self.send_qos(summary);
            }
            UpstreamEvent::Navigation(navigation) => {
                gst::log!(CAT, imp = self, "{navigation:?} of reader {}", reader.id);
                self.send_upstream(upstream::navigation_event(navigation));
            }
            other => gst::debug!(CAT, imp = self, "{other:?} of reader {} is not known", reader.id),
        }
    }

    /// Sends upstream a summary of the readers' quality of service, if there is one.
    pub(super) fn send_qos(&self, summary: Option<Summary>) {
        let (kind, proportion, jitter, time) = match summary {
            None => return,
            Some(Summary::OnTime) => (gst::QOSType::Overflow, 1.0, 0, gst::ClockTime::ZERO),
            Some(Summary::Report(qos)) => {
                let Some(time) = self.running_time_at(qos.time) else { return };
                let kind = if qos.jitter > 0 { gst::QOSType::Underflow } else { gst::QOSType::Overflow };
                // GStreamer accepts no time before 0.
                let jitter = qos.jitter.max(-i64::try_from(time.nseconds()).unwrap_or(i64::MAX));
                (kind, qos.proportion, jitter, time)
            }
        };
        gst::log!(
            CAT,
            imp = self,
            "the readers are late by {jitter} ns at {time}, in proportion {proportion}"
        );
        self.send_upstream(gst::event::Qos::new(kind, proportion, jitter, time));
    }

    /// Returns the running time of upstream's frames that are due at `time`, in ns of
    /// `CLOCK_MONOTONIC`; none if the pipeline has no clock, or did not run then.
    fn running_time_at(&self, time: u64) -> Option<gst::ClockTime> {
        let (difference, base) = (self.clock.difference()?, self.obj().base_time()?);
        let sink = self.obj();
        let late = i128::from(self.published_latency().nseconds()) + i128::from(sink.ts_offset());
        let running = difference.to_clock(time) - i128::from(base.nseconds()) - late - self.input().delay;
        u64::try_from(running).ok().and_then(|running| gst::ClockTime::try_from(running).ok())
    }

    fn send_upstream(&self, event: gst::Event) {
        if let Some(pad) = self.obj().static_pad("sink") {
            pad.push_event(event);
        }
    }
}
