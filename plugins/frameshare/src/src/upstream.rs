// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events from downstream, on their way to the exporter.

use super::{imp::FrameshareSrc, log::CAT, stats::Figures};
use crate::{sync::lock, upstream};
use frameshare::upstream::{MAX_JITTER_NS, Qos, UpstreamEvent};
use gst::{prelude::*, subclass::prelude::*};

/// Maximum lateness in ns that is reported, either way.
const MAX_JITTER: i64 = MAX_JITTER_NS as i64;

impl FrameshareSrc {
    /// Sends the exporter an event from downstream, if `upstream-events` says so and the exporter
    /// accepts it.
    pub(super) fn send_upstream(&self, event: &gst::EventRef) {
        let (kinds, is_live) = {
            let settings = lock(&self.settings);
            (settings.upstream_events.kinds(), settings.is_live)
        };
        let event = match event.view() {
            // Without a live source the time of a frame says nothing about the exporter's.
            gst::EventView::Qos(qos) if kinds.qos && is_live => self.qos_of(qos),
            gst::EventView::Navigation(_) if kinds.navigation => {
                upstream::navigation_of(event).map(UpstreamEvent::Navigation)
            }
            _ => return,
        };
        let Some(event) = event else { return };
        let sender = lock(&self.upstream).clone();
        match sender.send(&event) {
            Ok(()) => Figures::count(&self.figures.upstream_events),
            Err(error) => gst::log!(CAT, imp = self, "Not sending {event:?}: {error}"),
        }
    }

    /// Returns the report for the exporter; none for a request to throttle, and without a clock.
    fn qos_of(&self, event: &gst::event::Qos) -> Option<UpstreamEvent> {
        let (kind, proportion, jitter, time) = event.get();
        if kind == gst::QOSType::Throttle {
            return None;
        }
        let due = i128::from(time?.nseconds()) + i128::from(self.obj().base_time()?.nseconds());
        let time = self.clock.difference()?.to_monotonic(due);
        let jitter = jitter.clamp(-MAX_JITTER, MAX_JITTER);
        Some(UpstreamEvent::Qos(Qos { proportion, jitter, time }))
    }
}
