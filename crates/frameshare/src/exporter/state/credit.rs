// SPDX-License-Identifier: MIT OR Apache-2.0

//! Credit: the number of slots that readers may lease.

use super::State;
use crate::sys::is_own_or_root;
use frameshare_protocol::{MemoryKind, SlotId};
use std::collections::BTreeSet;

/// The automatic credit leaves enough for this number of readers with as much.
const MIN_READERS: u32 = 40;

impl State {
    /// The sum of all readers' credits.
    pub fn credit(&self) -> u32 {
        self.readers.credit()
    }

    /// Returns the credit left for a joining reader of this user. A quarter of the slots is
    /// reserved for readers of the exporter's own user, so that other users cannot exclude them.
    pub fn credit_left(&self, uid: u32) -> u32 {
        let left = self.config.max_slots.saturating_sub(self.promised_slots());
        if is_own_or_root(uid) {
            return left;
        }
        left.saturating_sub((self.config.max_slots / 4).saturating_sub(self.readers.own_credit()))
    }

    /// Returns the credit of a reader that leaves it to the exporter: what suits the stream, and
    /// less if little is left.
    pub fn automatic_credit(&self, left: u32) -> u32 {
        self.usual_credit().min((left / MIN_READERS).max(2))
    }

    /// Returns the number of slots of the present generation of this kind, and of its overflow,
    /// with other holders than publications.
    pub fn held_upstream(&self, kind: MemoryKind) -> u32 {
        let Some(current) = self.generations.iter().rfind(|one| one.is_own(kind)) else { return 0 };
        let published: BTreeSet<SlotId> =
            self.publications.holding().map(|publication| publication.slot.0.id).collect();
        let (present, slot_size) = (current.id, current.slot_size);
        let open = self.generations.iter();
        let open = open.filter(|one| one.id == present || one.is_open_overflow(kind, slot_size));
        open.map(|one| one.count_held(|index| published.contains(&SlotId { generation: one.id, index })))
            .sum()
    }
}
