// SPDX-License-Identifier: MIT OR Apache-2.0

//! In-band events of the sink.

use super::{imp::FrameshareSink, log::CAT};
use crate::events::{self, Gap};
use gst::subclass::prelude::*;

impl FrameshareSink {
    /// Sends an event to readers, if they can use it. Called in order with frames.
    pub(super) fn forward(&self, event: &gst::EventRef) {
        match events::encode(event) {
            Ok(None) => {}
            Ok(Some(event)) => {
                let Some(forgotten) = self.input().announced.note(&event) else { return };
                self.send(event);
                forgotten.into_iter().for_each(|kind| self.send(events::forget(kind)));
            }
            Err(error) => gst::warning!(CAT, imp = self, "an event stays here: {error}: {event:?}"),
        }
    }

    /// Sends a gap when it is due.
    pub(super) fn forward_gap(&self, gap: &gst::event::Gap) {
        let (start, duration) = gap.get();
        let times = self.times(Some(start), None, duration);
        self.forward_timeline(times);
        if let Some(pts) = times.pts {
            self.send(events::encode_gap(Gap {
                pts,
                duration: times.duration,
                flags: gap.gap_flags().bits(),
            }));
        }
    }

    pub(super) fn send(&self, event: frameshare::Event) {
        let Some(stream) = self.stream() else { return };
        gst::debug!(CAT, imp = self, "event of kind {} and {} bytes", event.kind, event.payload.len());
        if let Err(error) = stream.exporter.send_event(event) {
            gst::warning!(CAT, imp = self, "an event stays here: {error}");
        }
    }
}
