// SPDX-License-Identifier: MIT OR Apache-2.0

//! One generation: the slots that share a size and a kind of memory.

use super::{NoSlot, Unallocated, Vacancy};
use crate::exporter::system::{Slot, System};
use frameshare_protocol::{MemoryKind, SlotId};
use std::{collections::BTreeMap, time::Instant};

/// A generation, as the exporter's state records it.
#[derive(Debug)]
pub struct Generation<S: System> {
    /// Its number.
    pub id: u32,
    /// Size of a slot in bytes.
    pub slot_size: u64,
    /// The kind of its memory.
    pub kind: MemoryKind,
    source: Source<S>,
    /// Its slots are needed only while readers have a backlog.
    is_overflow: bool,
    slots: Vec<Entry<S>>,
    /// The number of the next slot. None is used twice.
    next: u32,
    /// Slots that are retired although the generation is not, and whose memory readers must drop
    /// before it is freed.
    retired_slots: Vec<S::Slot>,
    /// Readers were asked to drop their imports: nothing more is published in it.
    pub retired: bool,
}

/// A slot, and the time at which it was last seen in use.
#[derive(Debug)]
struct Entry<S: System> {
    slot: S::Slot,
    used: Instant,
}

/// The source of a generation's slots.
#[derive(Debug)]
enum Source<S: System> {
    /// The exporter's own allocator.
    Allocated(S::Allocator),
    /// Adopted allocations, by their identities.
    Adopted(BTreeMap<S::AdoptedId, u32>),
}

impl<S: System> Generation<S> {
    /// A generation of own slots in memory of this source.
    pub fn new(id: u32, slot_size: u64, kind: MemoryKind, allocator: S::Allocator) -> Self {
        Self::of(id, slot_size, kind, Source::Allocated(allocator))
    }

    /// A generation of further own slots of this size, for the time of a backlog.
    pub fn overflow(id: u32, slot_size: u64, kind: MemoryKind, allocator: S::Allocator) -> Self {
        Self { is_overflow: true, ..Self::new(id, slot_size, kind, allocator) }
    }

    /// A generation of adopted allocations of this kind, each of `slot_size` bytes.
    pub fn of_adopted(id: u32, slot_size: u64, kind: MemoryKind) -> Self {
        Self::of(id, slot_size, kind, Source::Adopted(BTreeMap::new()))
    }

    fn of(id: u32, slot_size: u64, kind: MemoryKind, source: Source<S>) -> Self {
        let (slots, retired_slots) = (Vec::new(), Vec::new());
        Self {
            id,
            slot_size,
            kind,
            source,
            is_overflow: false,
            slots,
            next: 0,
            retired_slots,
            retired: false,
        }
    }

    /// Returns whether its slots are own ones of this kind, whatever they are needed for.
    pub fn is_of(&self, kind: MemoryKind) -> bool {
        !self.is_adopted() && self.kind == kind
    }

    /// Returns whether its slots are own ones of this kind, not only for backlogs.
    pub fn is_own(&self, kind: MemoryKind) -> bool {
        self.is_of(kind) && !self.is_overflow
    }

    /// Returns whether its slots are own ones of this kind and size for backlogs, and may still be
    /// taken.
    pub fn is_open_overflow(&self, kind: MemoryKind, slot_size: u64) -> bool {
        self.is_of(kind) && self.is_overflow && !self.retired && self.slot_size == slot_size
    }

    /// Returns whether its slots are for backlogs only.
    pub fn is_overflow(&self) -> bool {
        self.is_overflow
    }

    /// Returns whether its slots are own ones of this kind and may still be taken.
    pub fn is_open(&self, kind: MemoryKind) -> bool {
        self.is_own(kind) && !self.retired
    }

    /// Returns whether its slots are adopted allocations.
    pub fn is_adopted(&self) -> bool {
        matches!(self.source, Source::Adopted(_))
    }

    /// Returns the slot of an adopted allocation, if it has one.
    pub fn adopted(&self, id: S::AdoptedId) -> Option<S::Slot> {
        let Source::Adopted(known) = &self.source else { return None };
        // Adopted slots are not retired one by one.
        known.get(&id).and_then(|index| self.slots.get(*index as usize)).map(|entry| entry.slot.clone())
    }

    /// Makes a slot of an adopted allocation.
    pub fn adopt(&mut self, memory: S::Memory, id: S::AdoptedId, system: &S, now: Instant) -> S::Slot {
        let slot = self.add(memory, system, now);
        if let Source::Adopted(known) = &mut self.source {
            known.insert(id, slot.id().index);
        }
        slot
    }

    /// Makes a slot of fresh memory.
    pub fn add(&mut self, memory: S::Memory, system: &S, now: Instant) -> S::Slot {
        let id = SlotId { generation: self.id, index: self.next };
        self.next += 1;
        let slot = system.slot(id, self.is_overflow, memory);
        self.slots.push(Entry { slot: slot.clone(), used: now });
        slot
    }

    /// The allocator of own slots, whose descriptor importers need once for all slots, if the kind
    /// has one.
    pub fn pool(&self) -> Option<&S::Allocator> {
        match &self.source {
            Source::Allocated(allocator) => Some(allocator),
            Source::Adopted(_) => None,
        }
    }

    /// Number of slots.
    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Returns whether it has no slots.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of free slots, for people.
    pub fn count_free(&self) -> u32 {
        self.slots.iter().filter(|entry| entry.slot.holders() == 1).count() as u32
    }

    /// Returns a free slot, the first one, so that the last ones stay unused while they are not
    /// needed.
    pub fn free(&mut self, now: Instant) -> Option<S::Slot> {
        let entry = self.slots.iter_mut().find_map(|entry| entry.slot.is_free().then_some(entry))?;
        entry.used = now;
        Some(entry.slot.clone())
    }

    /// Returns a free slot, or capacity to allocate one within `max`.
    pub fn place(&mut self, max: u32, now: Instant) -> Result<Vacancy<S>, NoSlot<S>> {
        if let Some(free) = self.free(now) {
            return Ok(Vacancy::Free(free));
        }
        if self.len() >= max {
            return Err(NoSlot::Exhausted { max_slots: max });
        }
        let Source::Allocated(allocator) = &self.source else {
            return Err(NoSlot::Exhausted { max_slots: 0 });
        };
        let (generation, slot_size) = (self.id, self.slot_size);
        Ok(Vacancy::Unallocated(Unallocated { generation, allocator: allocator.clone(), slot_size }))
    }

    /// Returns the number of slots with other holders than publications; a `published` slot may be
    /// held upstream as well.
    pub fn count_held(&self, published: impl Fn(u32) -> bool) -> u32 {
        let in_use = self.slots.iter().filter(|entry| entry.slot.holders() > 1);
        in_use.filter(|entry| !published(entry.slot.id().index)).count() as u32
    }

    /// Returns whether publications are the only holders of all slots; a slot has `of(slot)` of
    /// them.
    pub fn is_held_by_publications_alone(&self, of: impl Fn(u32) -> usize) -> bool {
        self.slots.iter().all(|entry| entry.slot.holders() == 1 + of(entry.slot.id().index))
    }

    /// Removes free slots, and returns them to be freed.
    pub fn take_unused(&mut self) -> Vec<S::Slot> {
        self.slots.extract_if(.., |entry| entry.slot.is_free()).map(|entry| entry.slot).collect()
    }

    /// Returns whether slots may be trimmed so that `least` are left. Those that a charged user was
    /// given stay: their memory would be kept anyway.
    pub fn may_shrink(&self, least: u32) -> bool {
        self.len() > least && self.slots.iter().any(|entry| !entry.slot.is_given())
    }

    /// Returns free slots that were not in use since `since`, but leaves `least` slots: the last
    /// ones, which are the first to be unused.
    pub fn find_unused(&mut self, since: Instant, least: u32, now: Instant) -> Vec<S::Slot> {
        let spare = self.len().saturating_sub(least) as usize;
        let mut unused = Vec::new();
        for entry in self.slots.iter_mut().rev() {
            if !entry.slot.is_free() {
                entry.used = now;
            } else if entry.used < since && unused.len() < spare && !entry.slot.is_given() {
                unused.push(entry.slot.clone());
            }
        }
        unused
    }

    /// Takes a slot out of use. It is kept until [`Generation::take_dropped`] returns it.
    pub fn retire_slot(&mut self, slot: S::Slot) {
        self.slots.retain(|entry| entry.slot.id() != slot.id());
        self.retired_slots.push(slot);
    }

    /// Removes retired slots that are not `kept`, and returns them to be freed.
    pub fn take_dropped(&mut self, kept: impl Fn(SlotId) -> bool) -> Vec<S::Slot> {
        self.retired_slots.extract_if(.., |slot| !kept(slot.id())).collect()
    }

    /// Bytes of retired slots.
    pub fn retired_slot_bytes(&self) -> u64 {
        self.retired_slots.iter().map(|slot| slot.size()).sum()
    }

    /// Returns whether nothing is to be freed.
    pub fn has_no_memory(&self) -> bool {
        self.slots.is_empty() && self.retired_slots.is_empty()
    }

    /// Allocates further slots with another allocator.
    #[cfg(feature = "testing")]
    pub fn set_allocator(&mut self, allocator: S::Allocator) {
        self.source = Source::Allocated(allocator);
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().map(|entry| entry.slot.size()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::{
        accounts::MemoryFile,
        fake::{self, Allocator, Fake, memory},
    };
    use std::time::Duration;

    const KIND: MemoryKind = MemoryKind::Vmm;
    const SIZE: u64 = 100;

    /// A generation of own slots, and its slots.
    fn generation(slots: u32, now: Instant) -> (Generation<Fake>, Vec<fake::Slot>) {
        let mut generation = Generation::new(7, SIZE, KIND, Allocator(KIND));
        let slots = (0..slots).map(|_| generation.add(memory(SIZE), &Fake::default(), now)).collect();
        (generation, slots)
    }

    fn indices(slots: &[fake::Slot]) -> Vec<u32> {
        slots.iter().map(|slot| slot.id().index).collect()
    }

    #[test]
    fn frames_take_slots_of_their_kind_and_purpose() {
        let own = || Generation::<Fake>::new(1, SIZE, KIND, Allocator(KIND));
        let overflow = || Generation::<Fake>::overflow(1, SIZE, KIND, Allocator(KIND));
        let adopted = || Generation::<Fake>::of_adopted(1, SIZE, KIND);
        let retired = |mut one: Generation<Fake>| {
            one.retired = true;
            one
        };
        // Own slots of the kind, those of them that are not for backlogs, those that may still be
        // taken, those for backlogs that may still be taken, all for backlogs, all adopted ones.
        for (one, expected) in [
            (own(), [true, true, true, false, false, false]),
            (retired(own()), [true, true, false, false, false, false]),
            (overflow(), [true, false, false, true, true, false]),
            (retired(overflow()), [true, false, false, false, true, false]),
            (adopted(), [false, false, false, false, false, true]),
        ] {
            let found = [
                one.is_of(KIND),
                one.is_own(KIND),
                one.is_open(KIND),
                one.is_open_overflow(KIND, SIZE),
                one.is_overflow(),
                one.is_adopted(),
            ];
            assert_eq!(found, expected, "{one:?}");
            assert!(!one.is_of(MemoryKind::Host) && !one.is_open_overflow(KIND, SIZE + 1));
            assert_eq!(one.pool(), (!one.is_adopted()).then_some(&Allocator(KIND)));
        }
    }

    #[test]
    fn first_free_slot_is_taken_and_last_ones_stay_unused() {
        let start = Instant::now();
        let later = start + Duration::from_secs(1);
        let (mut one, mut slots) = generation(3, start);
        assert_eq!((one.len(), one.count_free(), one.free(start).is_none()), (3, 0, true));
        slots.drain(1..);
        assert_eq!(one.count_free(), 2);
        let taken = one.free(later).unwrap();
        assert_eq!(taken.id(), SlotId { generation: 7, index: 1 });
        drop((taken, slots));
        // Only the slot that was taken later was in use since then.
        assert_eq!(indices(&one.find_unused(later, 0, later)), [2, 0]);
    }

    #[test]
    fn only_own_generation_below_limit_allocates() {
        let now = Instant::now();
        let (mut one, slots) = generation(2, now);
        assert!(matches!(one.place(2, now), Err(NoSlot::Exhausted { max_slots: 2 })));
        let Ok(Vacancy::Unallocated(vacancy)) = one.place(3, now) else { panic!("the limit is not reached") };
        assert_eq!((vacancy.generation, vacancy.slot_size), (7, SIZE));
        drop(slots);
        assert!(matches!(one.place(2, now), Ok(Vacancy::Free(_))));
        let mut adopted = Generation::<Fake>::of_adopted(1, SIZE, KIND);
        assert!(matches!(adopted.place(1, now), Err(NoSlot::Exhausted { max_slots: 0 })));
    }

    #[test]
    fn adopted_allocation_keeps_its_slot() {
        let now = Instant::now();
        let mut one = Generation::<Fake>::of_adopted(1, SIZE, KIND);
        let slots = [10, 20].map(|id| one.adopt(memory(SIZE), id, &Fake::default(), now).id());
        assert_eq!([10, 20].map(|id| one.adopted(id).unwrap().id()), slots);
        assert!(one.adopted(30).is_none() && generation(1, now).0.adopted(0).is_none());
    }

    #[test]
    fn holders_of_slots_are_publications_or_others() {
        let now = Instant::now();
        let (one, slots) = generation(3, now);
        let twice = slots[0].clone();
        // Slot 0 has two holders, the others have one.
        assert_eq!([one.count_held(|_| false), one.count_held(|index| index == 1)], [3, 2]);
        assert!(one.is_held_by_publications_alone(|index| if index == 0 { 2 } else { 1 }));
        assert!(!one.is_held_by_publications_alone(|_| 1), "slot 0 has another holder");
        drop((slots, twice));
        assert_eq!(one.count_held(|_| false), 0);
        assert!(one.is_held_by_publications_alone(|_| 0));
    }

    #[test]
    fn slots_unused_for_long_are_trimmed_from_the_end() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let file = fake::file(SIZE);
        file.note_given();
        let (mut one, slots) = generation(4, start);
        let given = fake::Memory { file: Some(file), ..memory(SIZE) };
        one.add(given, &Fake::default(), start);
        // Slot 4 was given to a charged user. A slot that is in use counts as used then.
        assert!(one.find_unused(at(1), 0, at(1)).is_empty());
        drop(slots);
        for (since, least, expected) in [
            (at(1), 0, [].as_slice()),
            (at(2), 0, &[3, 2, 1, 0]),
            (at(2), 3, &[3, 2]),
            (at(2), 4, &[3]),
            (at(2), 5, &[]),
            (at(2), 6, &[]),
        ] {
            assert_eq!(indices(&one.find_unused(since, least, at(2))), expected, "{least} slots stay");
        }
        let in_use = one.free(at(2)).unwrap();
        assert_eq!(indices(&one.find_unused(at(2), 0, at(2))), [3, 2, 1]);
        assert!(one.may_shrink(4) && !one.may_shrink(5));
        drop(in_use);
        // Free slots but the given one are taken out: nothing can be trimmed.
        for slot in one.find_unused(at(3), 0, at(3)) {
            one.retire_slot(slot);
        }
        assert_eq!((one.len(), one.may_shrink(0)), (1, false));
    }

    #[test]
    fn retired_slots_are_freed_once_dropped() {
        let now = Instant::now();
        let (mut one, slots) = generation(2, now);
        assert_eq!((one.bytes(), one.retired_slot_bytes(), one.has_no_memory()), (2 * SIZE, 0, false));
        one.retire_slot(slots[0].clone());
        assert_eq!((one.bytes(), one.retired_slot_bytes(), one.is_empty()), (SIZE, SIZE, false));
        assert_eq!(indices(&one.take_dropped(|slot| slot.index == 0)), []);
        one.retire_slot(slots[1].clone());
        assert_eq!((one.is_empty(), one.has_no_memory()), (true, false));
        assert_eq!(indices(&one.take_dropped(|slot| slot.index == 1)), [0]);
        assert_eq!(indices(&one.take_dropped(|_| false)), [1]);
        assert!(one.has_no_memory());
        // No number is used twice.
        drop(one.add(memory(SIZE), &Fake::default(), now));
        assert_eq!(indices(&one.take_unused()), [2]);
        assert!(one.has_no_memory());
    }
}
