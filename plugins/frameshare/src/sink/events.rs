// SPDX-License-Identifier: MIT OR Apache-2.0

//! In-band events of the sink.

use super::imp::{CAT, FrameshareSink};
use crate::events::{self, Gap};
use gst::subclass::prelude::*;
use std::collections::BTreeSet;

/// Announced sticky events.
#[derive(Default)]
pub(super) struct Told {
    /// The payload of the stream-start event.
    start: Option<Vec<u8>>,
    /// The kinds of sticky events since then.
    sticky: BTreeSet<u32>,
}

impl Told {
    /// Records an event. Returns the kinds that readers have to forget because of it, or none if
    /// they know the event already.
    fn note(&mut self, event: &frameshare::Event) -> Option<BTreeSet<u32>> {
        if !event.sticky {
            return Some(BTreeSet::new());
        }
        if !events::is_stream_start(event) {
            self.sticky.insert(event.kind);
            return Some(BTreeSet::new());
        }
        if self.start.as_ref() == Some(&event.payload) {
            return None;
        }
        self.start = Some(event.payload.clone());
        Some(std::mem::take(&mut self.sticky))
    }
}

impl FrameshareSink {
    /// Sends an event to readers, if they can use it. Called in order with frames.
    pub(super) fn forward(&self, event: &gst::EventRef) {
        match events::encode(event) {
            Ok(None) => {}
            Ok(Some(event)) => {
                let Some(forgotten) = self.input().told.note(&event) else { return };
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
        if let Some(pts) = times.pts {
            self.send(events::encode_gap(Gap::new(pts, times.duration, gap.gap_flags())));
        }
    }

    fn send(&self, event: frameshare::Event) {
        let Some(stream) = self.stream() else { return };
        gst::debug!(CAT, imp = self, "event of kind {} and {} bytes", event.kind, event.payload.len());
        if let Err(error) = stream.exporter.send_event(event) {
            gst::warning!(CAT, imp = self, "an event stays here: {error}");
        }
    }
}
