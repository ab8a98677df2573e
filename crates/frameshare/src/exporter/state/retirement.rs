// SPDX-License-Identifier: MIT OR Apache-2.0

//! Retirement of generations and of single slots: readers drop their imports, then the memory is
//! freed.

use super::State;
use crate::{
    exporter::{
        link::{Ending, Link, Presence},
        owners::Publication,
        slot::{Generation, Slot},
    },
    memory::frees_imports_first,
};
use frameshare_protocol::{MemoryKind, SlotId, message::Reason};
use std::mem;

/// Maximum number of slots that a reader is asked for and has not acknowledged: far fewer than the
/// messages that may wait for it.
const MAX_RETIRED_SLOTS: usize = 64;

impl State {
    /// Retires old generations that only readers still refer to, and frees their slots.
    pub fn retire(&mut self) {
        let newest = |kind| self.generations.iter().rfind(|one| one.is_own(kind)).map(|one| one.id);
        // The generation of new frames, and the one of downloads.
        let current = [newest(self.kind()), self.downloads.as_ref().and_then(|_| newest(MemoryKind::Host))];
        let keeps_overflow = self.keeps_overflow();
        for index in 0..self.generations.len() {
            let publications = &self.publications;
            let generation = &mut self.generations[index];
            let (id, kind) = (generation.id, generation.kind);
            let of = |slot| {
                let in_slot = |publication: &&Publication| {
                    publication.slot.0.id == SlotId { generation: id, index: slot }
                };
                publications.holding().filter(in_slot).count()
            };
            let stays = keeps_overflow && generation.is_overflow();
            let old = !generation.is_adopted() && !current.contains(&Some(id)) && !stays;
            if old && !generation.retired && generation.is_held_by_publications_alone(of) {
                self.retire_generation(index);
            }
            let imported = self.readers.import(id);
            let generation = &mut self.generations[index];
            if generation.retired && !(frees_imports_first(kind) && imported) {
                let unused = generation.take_unused();
                if !unused.is_empty() {
                    self.deferred.drop_resource(unused);
                }
            }
        }
        // Memory that a reader imports stays allocated although the exporter has freed it.
        self.retired.retain(|id, _| self.readers.import(*id));
        self.free_retired_slots();
        let closed = self.closed;
        self.generations.retain(|one| {
            !one.has_no_memory() || (!closed && (current.contains(&Some(one.id)) || !one.retired))
        });
    }

    /// Asks readers to drop their imports of a generation. A reader that keeps too much memory from
    /// being freed is evicted.
    pub(super) fn retire_generation(&mut self, index: usize) {
        let generation = &mut self.generations[index];
        generation.retired = true;
        let (before, id, bytes) = (self.publications.next(), generation.id, generation.bytes());
        let retired = mem::take(&mut self.retired);
        let limit = self.config.max_retired_bytes;
        self.each_link(|link| {
            let kept = link.imports.kept(&retired);
            if kept > limit {
                let text =
                    format!("it keeps {kept} bytes of retired memory from being freed, and may keep {limit}");
                return Err(Ending::new(Reason::LimitExceeded, text));
            }
            link.retire(before, id)
        });
        self.retired = retired;
        self.retired.insert(id, bytes);
    }

    /// Takes slots of a generation out of use, and asks readers to drop their imports. Slots stay
    /// that a reader may not keep from being freed besides what it keeps already: a paused reader
    /// acknowledges when it goes on. Returns the number of the others.
    pub(super) fn retire_slots(&mut self, index: usize, mut slots: Vec<Slot>) -> u64 {
        let limit = self.config.max_retired_bytes;
        let may_keep = |link: &Link| {
            let slots = MAX_RETIRED_SLOTS.saturating_sub(link.imports.retired_slots());
            (slots, limit.saturating_sub(link.imports.kept(&self.retired)))
        };
        let mut left: Vec<_> =
            self.readers.present().iter().map(|link| (&link.imports, may_keep(link))).collect();
        slots.retain(|slot| {
            let mut readers =
                left.iter_mut().filter(|(imports, _)| imports.has(slot.0.id)).collect::<Vec<_>>();
            let may_go = readers.iter().all(|(_, (slots, bytes))| *slots > 0 && *bytes >= slot.size());
            for (_, (slots, bytes)) in readers.iter_mut().filter(|_| may_go) {
                (*slots, *bytes) = (*slots - 1, *bytes - slot.size());
            }
            may_go
        });
        self.each_link(|link| link.retire_slots(&slots));
        let count = slots.len() as u64;
        slots.into_iter().for_each(|slot| self.generations[index].retire_slot(slot));
        self.free_retired_slots();
        count
    }

    /// Frees retired slots, those that readers must drop first once no reader has them any more.
    fn free_retired_slots(&mut self) {
        for generation in &mut self.generations {
            let frees_imports_first = frees_imports_first(generation.kind);
            let is_imported = |slot| self.readers.all().any(|link| link.imports.may_have(slot));
            let unused = generation.take_dropped(|slot| frees_imports_first && is_imported(slot));
            if !unused.is_empty() {
                self.deferred.drop_resource(unused);
            }
        }
    }

    /// Asks a reader to drop its imports of a generation that was retired before the reader got its
    /// first frame in it, a kept one.
    pub(super) fn retire_for(&mut self, reader: u64, id: u32) {
        let retired = self.generations.iter().find(|one| one.id == id && one.retired);
        let Some(bytes) = retired.map(Generation::bytes) else { return };
        let before = self.publications.next();
        self.each_link(|link| if link.info.id == reader { link.retire(before, id) } else { Ok(()) });
        self.retired.insert(id, bytes);
    }

    /// Retires adopted memory: its owners are dropped when no reader imports it any more.
    pub fn retire_adopted(&mut self) {
        for index in 0..self.generations.len() {
            if self.generations[index].is_adopted() && !self.generations[index].retired {
                self.retire_generation(index);
            }
        }
        self.retire();
    }

    /// Handles a reader's acknowledgement that it has dropped its imports of a generation.
    pub fn acknowledge(&mut self, id: u64, generation: u32) {
        if self.readers.find(id).is_some_and(|link| {
            !link.imports.drop_generation(generation, link.presence() >= Presence::Closed)
        }) {
            let text = format!("it gives up generation {generation}, which it was not asked to");
            return self.end_link_of(id, &Ending::new(Reason::Violation, text), false);
        }
        self.waiters.note_change();
    }

    /// Handles a reader's acknowledgement that it has dropped its import of a slot.
    pub fn acknowledge_slot(&mut self, id: u64, slot: SlotId) {
        if self.readers.find(id).is_some_and(|link| !link.imports.drop_slot(slot)) {
            let text = format!("it gives up slot {slot}, which it was not asked to");
            return self.end_link_of(id, &Ending::new(Reason::Violation, text), false);
        }
        self.waiters.note_change();
    }
}
