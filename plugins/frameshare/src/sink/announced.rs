// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sticky events that were announced to readers.

use crate::events;
use std::collections::BTreeSet;

/// Sticky events that were announced to readers.
#[derive(Default)]
pub(super) struct Announced {
    /// The payload of the stream-start event.
    start: Option<Vec<u8>>,
    /// The kinds of sticky events since then.
    sticky: BTreeSet<u32>,
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
}
