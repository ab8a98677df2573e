// SPDX-License-Identifier: MIT OR Apache-2.0

//! Credit: the number of slots that readers may lease.

use super::{Publication, State};
use crate::{exporter::slot::Generation, sys::is_own_or_root};
use frameshare_protocol::SlotId;

impl State {
    /// The sum of all readers' credits.
    pub fn credit(&self) -> u32 {
        let links = self.links.iter().chain(self.draining.iter().filter(|link| !link.leases.is_empty()));
        self.promised + links.map(|link| link.info.credit).sum::<u32>()
    }

    /// Returns the credit left for a joining reader of this user. A quarter of the slots is
    /// reserved for readers of the exporter's own user, so that other users cannot exclude them.
    pub fn credit_left(&mut self, uid: u32) -> u32 {
        let kind = self.kind();
        let current = self.generations.iter_mut().rfind(|one| one.is_own(kind));
        let held = current.map_or(0, |generation| held_upstream(generation, &self.publications));
        let left = self.config.max_slots.saturating_sub(2 + self.credit() + held);
        if is_own_or_root(uid) {
            return left;
        }
        let own = self.links.iter().filter(|link| is_own_or_root(link.info.uid));
        let in_use = own.map(|link| link.info.credit).sum();
        left.saturating_sub((self.config.max_slots / 4).saturating_sub(in_use))
    }
}

/// Returns the number of slots of a generation with other holders than publications.
pub fn held_upstream(generation: &mut Generation, publications: &[Option<Publication>]) -> u32 {
    let id = generation.id;
    generation.count_held(|index| {
        let mut slots = publications.iter().flatten().map(|publication| &publication.slot.0);
        slots.any(|slot| slot.id == SlotId { generation: id, index })
    })
}
