// SPDX-License-Identifier: MIT OR Apache-2.0

//! Credit: the number of slots that readers may lease, and the lengths of their queues.

use super::State;
use crate::exporter::system::{Slot, System};
use frameshare_protocol::{MemoryKind, SlotId};
use std::collections::BTreeSet;

/// The automatic credit leaves enough for this number of readers with as much.
const MIN_READERS: u32 = 40;

impl<S: System> State<S> {
    /// Returns the credit left for a joining reader, of the exporter's own user or root or of
    /// another one. A quarter of the slots is reserved for the own ones, so that other users cannot
    /// exclude them.
    pub fn credit_left(&self, is_own_or_root: bool) -> u32 {
        let left = self.limits.max_slots.saturating_sub(self.promised_slots());
        if is_own_or_root {
            return left;
        }
        left.saturating_sub((self.limits.max_slots / 4).saturating_sub(self.readers.own_credit()))
    }

    /// Returns the credit of a reader that leaves it to the exporter: what suits the stream, and
    /// less if little is left.
    pub fn automatic_credit(&self, left: u32) -> u32 {
        self.arrivals.usual_credit(self.announcement.period()).min((left / MIN_READERS).max(2))
    }

    /// Returns the number of slots of the present generation of this kind, and of its overflow,
    /// with other holders than publications.
    pub fn held_upstream(&self, kind: MemoryKind) -> u32 {
        self.held_upstream_besides(kind, None)
    }

    /// The same, without this slot.
    pub fn held_upstream_besides(&self, kind: MemoryKind, own: Option<SlotId>) -> u32 {
        let published = self.publications.holding().map(|publication| publication.slot.id());
        let left_out: BTreeSet<SlotId> = published.chain(own).collect();
        self.slots.held_upstream(kind, |slot| left_out.contains(&slot))
    }

    /// Notes the times of a frame that is published now, and adapts the queues of readers that
    /// leave it to the exporter.
    pub fn note_arrival(&mut self, arrived: Option<u64>, pts: Option<u64>, now: u64) {
        if self.arrivals.note(arrived, pts, now) {
            self.adapt_queues();
        }
    }

    /// Adapts the queues of readers that leave it to the exporter.
    pub fn adapt_queues(&mut self) {
        let frames = self.arrivals.automatic_queue(self.announcement.period());
        self.readers.present_mut().iter_mut().for_each(|link| link.adapt_queue(frames));
    }
}
