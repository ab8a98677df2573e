// SPDX-License-Identifier: MIT OR Apache-2.0

//! State that was announced to readers: sticky events, the segment, the latency.

use crate::{
    events,
    times::{Latency, Timeline},
};
use std::collections::BTreeSet;

/// The clocks are read one after the other: smaller differences are not sent.
const MOVED_NS: u64 = 1_000_000;

/// State that was announced to readers, so that each is sent once. It sends nothing itself.
#[derive(Default)]
pub(super) struct Announced {
    /// The payload of the stream-start event.
    start: Option<Vec<u8>>,
    /// The kinds of sticky events since then.
    sticky: BTreeSet<u32>,
    /// The last segment.
    timeline: Option<Timeline>,
    latency: Latency,
}

impl Announced {
    /// Records an event. Returns the kinds that readers have to forget because of it, or none if
    /// they know the event already.
    pub(super) fn note(&mut self, event: &frameshare::Event) -> Option<BTreeSet<u32>> {
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
    /// Records the segment of the next frame. Returns whether it is another one than the last, or
    /// has moved on the clock.
    pub(super) fn note_timeline(&mut self, timeline: Option<Timeline>) -> bool {
        let is_same = match (&self.timeline, &timeline) {
            (Some(last), Some(new)) => {
                last.origin.abs_diff(new.origin) <= MOVED_NS && new.at(last.origin) == *last
            }
            (last, new) => last.is_none() && new.is_none(),
        };
        if !is_same {
            self.timeline = timeline;
        }
        !is_same
    }

    /// Records by how many ns a frame comes later than its time, at most `limit`: see
    /// [`Latency::note`].
    pub(super) fn note_lateness(&mut self, limit: u64, late: impl FnOnce() -> i128) -> Option<u64> {
        self.latency.note(limit, late)
    }
}
