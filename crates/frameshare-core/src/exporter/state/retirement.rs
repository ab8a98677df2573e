// SPDX-License-Identifier: MIT OR Apache-2.0

//! Retirement of generations and of single slots: readers drop their imports, then the memory is
//! freed.

use super::State;
use crate::exporter::{
    ending::Ending,
    link::{Imports, Link, Presence},
    slot::Generation,
    system::{Slot, System},
};
use frameshare_protocol::{MemoryKind, SlotId, message::Reason};
use std::collections::BTreeMap;

/// Maximum number of slots that a reader is asked for and has not acknowledged: far fewer than the
/// messages that may wait for it.
const MAX_RETIRED_SLOTS: usize = 64;

impl<S: System> State<S> {
    /// Retires old generations that only readers still refer to, and frees their slots.
    pub fn retire(&mut self) {
        let newest = |kind| self.slots.newest(kind).map(|one| one.id);
        // The generation of new frames, and the one of downloads.
        let current = [newest(self.kind()), self.downloads.as_ref().and_then(|_| newest(MemoryKind::Host))];
        let keeps_overflow = !self.closed && self.slots.keeps_overflow(S::now());
        for index in 0..self.slots.generations().len() {
            let holding = |slot| self.publications.holding().filter(|one| one.slot.id() == slot).count();
            if self.slots.is_outdated(index, &current, keeps_overflow, holding) {
                self.retire_generation(index);
            }
            let is_imported = self.readers.import(self.slots.generations()[index].id);
            self.drop_slots(index, is_imported);
        }
        self.slots.forget_retired(|id| self.readers.import(id));
        self.drop_retired_slots();
        self.slots.remove_empty(&current, self.closed);
    }

    /// Frees the slots of a retired generation.
    fn drop_slots(&mut self, index: usize, is_imported: bool) {
        let unused = self.slots.take_unused(index, is_imported);
        if !unused.is_empty() {
            self.deferred.drop_resource(unused);
        }
    }

    /// Frees retired slots, those that readers must drop first once no reader has them any more.
    fn drop_retired_slots(&mut self) {
        let may_be_imported = |slot| self.readers.all().any(|link| link.imports.may_have(slot));
        let unused = self.slots.take_retired_slots(may_be_imported);
        if !unused.is_empty() {
            self.deferred.drop_resource(unused);
        }
    }

    /// Asks readers to drop their imports of a generation. A reader that keeps too much memory from
    /// being freed is evicted.
    pub fn retire_generation(&mut self, index: usize) {
        let (id, bytes) = self.slots.retire(index);
        let retired = self.slots.retired().clone();
        let (before, limit) = (self.publications.next(), self.limits.max_retired_bytes);
        self.each_link(|link| {
            check_kept(&link.imports, &retired, limit)?;
            link.retire(before, id)
        });
        self.slots.note_retired(id, bytes);
    }

    /// Takes slots of a generation out of use, and asks readers to drop their imports. Slots stay
    /// that a reader may not keep from being freed besides what it keeps already: a paused reader
    /// acknowledges when it goes on. Returns the number of the others.
    pub fn retire_slots(&mut self, index: usize, mut slots: Vec<S::Slot>) -> u64 {
        let limit = self.limits.max_retired_bytes;
        let may_keep = |link: &Link<S>| {
            let slots = MAX_RETIRED_SLOTS.saturating_sub(link.imports.retired_slots());
            (slots, limit.saturating_sub(link.imports.kept(self.slots.retired())))
        };
        let mut left: Vec<_> =
            self.readers.present().iter().map(|link| (&link.imports, may_keep(link))).collect();
        slots.retain(|slot| {
            let mut readers =
                left.iter_mut().filter(|(imports, _)| imports.has(slot.id())).collect::<Vec<_>>();
            let may_go = readers.iter().all(|(_, (slots, bytes))| *slots > 0 && *bytes >= slot.size());
            for (_, (slots, bytes)) in readers.iter_mut().filter(|_| may_go) {
                (*slots, *bytes) = (*slots - 1, *bytes - slot.size());
            }
            may_go
        });
        self.each_link(|link| link.retire_slots(&slots));
        let count = slots.len() as u64;
        self.slots.retire_slots(index, slots);
        self.drop_retired_slots();
        count
    }

    /// Asks a reader to drop its imports of a generation that was retired before the reader got its
    /// first frame in it, a kept one.
    pub fn retire_for(&mut self, reader: u64, id: u32) {
        if self.slots.generation(id).is_some_and(|one| one.retired) {
            let before = self.publications.next();
            self.each_link(|link| if link.info.id == reader { link.retire(before, id) } else { Ok(()) });
        }
    }

    /// Counts a retired generation whose first frame for this reader has waited in the backlog. A
    /// reader that keeps too much memory from being freed is evicted.
    pub fn count_retired(&mut self, index: usize, id: u32) -> Result<(), Ending> {
        let imports = &self.readers[index].imports;
        let retired = self.slots.generation(id).filter(|one| one.retired && !imports.has_any(id));
        if let Some(bytes) = retired.map(Generation::bytes) {
            check_kept(imports, self.slots.retired(), self.limits.max_retired_bytes)?;
            self.slots.note_retired(id, bytes);
        }
        Ok(())
    }

    /// Retires adopted memory: its owners are dropped when no reader imports it any more.
    pub fn retire_adopted(&mut self) {
        for index in 0..self.slots.generations().len() {
            let generation = &self.slots.generations()[index];
            if generation.is_adopted() && !generation.retired {
                self.retire_generation(index);
            }
        }
        self.retire();
        // A thread that waits to publish a frame in it waits in vain.
        self.waiters.note_change();
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

/// Checks that a reader keeps at most `limit` bytes of retired memory, before it gets or keeps one
/// more generation.
fn check_kept(imports: &Imports, retired: &BTreeMap<u32, u64>, limit: u64) -> Result<(), Ending> {
    let kept = imports.kept(retired);
    if kept <= limit {
        return Ok(());
    }
    let text = format!("it keeps {kept} bytes of retired memory from being freed, and may keep {limit}");
    Err(Ending::new(Reason::LimitExceeded, text))
}
