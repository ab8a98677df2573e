// SPDX-License-Identifier: MIT OR Apache-2.0

//! The slots of a stream, by generation.

use crate::{
    exporter::{
        frees_imports_first,
        slot::{Generation, NoSlot, Unallocated, Vacancy},
        system::{Slot, System},
    },
    selected::Selected,
};
use frameshare_protocol::{MemoryKind, SlotId};
use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

/// Time for which slots stay allocated after their last use, or after the last backlog that needed
/// them.
pub const KEPT: Duration = Duration::from_secs(5);
/// Interval of checks for unused slots. A slot that is released between two of them counts as
/// unused from the first one on.
const INTERVAL: Duration = Duration::from_secs(1);

/// Owns the slots of all generations: which one the next frame goes to, which of them are retired,
/// and when unused ones are looked for. A slot goes from free, through written and published, back
/// to free; it is free when this is its only holder. Slots of retired generations, and retired
/// slots, are freed when no reader can have them any more.
///
/// It knows neither readers nor publications: how many slots are promised, what is published, and
/// who imports what is told to it. It allocates nothing itself: a [`Vacancy`] is allocated with the
/// state unlocked, and then added.
#[derive(Debug)]
pub struct Slots<S: System> {
    /// Oldest first. Slots are taken from the last one that is not adopted.
    generations: Vec<Generation<S>>,
    next_id: u32,
    memory: Selected<MemoryKind>,
    /// Frames currently go to host memory, whatever kind was selected.
    in_host: bool,
    /// The next slot starts a generation if its size differs from the present one's.
    renew: bool,
    /// The same for host slots beside GPU slots.
    renew_host: bool,
    /// Bytes of retired generations that a reader may keep from being freed, by generation.
    retired: BTreeMap<u32, u64>,
    /// Slots that only backlogs need are kept until then.
    overflow_until: Option<Instant>,
    /// Time of the next check for unused slots, if there is one.
    trims_at: Option<Instant>,
    /// Number of slots that such checks have taken out of use.
    trimmed: u64,
}

impl<S: System> Slots<S> {
    /// No slots yet; they will be in memory of this kind.
    pub fn new(memory: Selected<MemoryKind>) -> Self {
        Self {
            generations: Vec::new(),
            next_id: 1,
            memory,
            in_host: false,
            renew: true,
            renew_host: true,
            retired: BTreeMap::new(),
            overflow_until: None,
            trims_at: None,
            trimmed: 0,
        }
    }

    /// The kind of memory that frames go to.
    pub fn kind(&self) -> MemoryKind {
        if self.in_host { MemoryKind::Host } else { self.memory.kind }
    }

    /// The kind of memory that was selected.
    pub fn memory(&self) -> &Selected<MemoryKind> {
        &self.memory
    }

    /// Selects another kind of memory for further slots.
    pub fn select(&mut self, memory: Selected<MemoryKind>) {
        self.memory = memory;
        self.renew();
    }

    /// Has frames go to host memory, whatever kind was selected, or to that.
    pub fn use_host(&mut self, yes: bool) {
        self.renew |= mem::replace(&mut self.in_host, yes) != yes;
    }

    /// Has the next slot begin a generation if its size differs from the present one's.
    pub fn renew(&mut self) {
        self.renew = true;
    }

    /// All generations, oldest first.
    pub fn generations(&self) -> &[Generation<S>] {
        &self.generations
    }

    /// The next host slot for a download begins no generation.
    #[cfg(feature = "testing")]
    pub fn keep_host_generation(&mut self) {
        self.renew_host = false;
    }

    /// Has the memory pass for another kind.
    #[cfg(feature = "testing")]
    pub fn pretend(&mut self, kind: MemoryKind) {
        (self.memory.kind, self.generations[0].kind) = (kind, kind);
    }

    /// The generations, to be changed.
    #[cfg(feature = "testing")]
    pub fn generations_mut(&mut self) -> &mut Vec<Generation<S>> {
        &mut self.generations
    }

    /// The generation of this number.
    pub fn generation(&self, id: u32) -> Option<&Generation<S>> {
        self.generations.iter().find(|one| one.id == id)
    }

    /// The newest generation of own slots of this kind, not only for backlogs.
    pub fn newest(&self, kind: MemoryKind) -> Option<&Generation<S>> {
        self.generations.iter().rfind(|one| one.is_own(kind))
    }

    /// The same, if its slots may still be taken.
    pub fn open(&self, kind: MemoryKind) -> Option<&Generation<S>> {
        self.generations.iter().rfind(|one| one.is_open(kind))
    }

    fn open_mut(&mut self, kind: MemoryKind) -> Option<&mut Generation<S>> {
        self.generations.iter_mut().rfind(|one| one.is_open(kind))
    }

    /// Returns whether there are slots of `size` bytes to wait for when no more can be allocated.
    pub fn has(&self, kind: MemoryKind, size: u64) -> bool {
        self.open(kind).is_some_and(|one| one.slot_size >= size && !one.is_empty())
    }

    /// Returns a free slot of the open generation of this kind, or of its overflow.
    pub fn free(&mut self, kind: MemoryKind, size: u64, now: Instant) -> Option<S::Slot> {
        let current = self.open_mut(kind)?;
        if current.slot_size < size {
            return None;
        }
        if let Some(slot) = current.free(now) {
            return Some(slot);
        }
        let slot_size = current.slot_size;
        let mut overflow = self.generations.iter_mut().filter(|one| one.is_open_overflow(kind, slot_size));
        overflow.find_map(|one| one.free(now))
    }

    /// Starts a new generation of own slots for frames if the newest does not suit `needed` bytes.
    /// Returns true if it did: older ones may have to be retired.
    pub fn renew_for_frames(&mut self, needed: u64, system: &S) -> Result<bool, S::MemoryError> {
        let renew = mem::replace(&mut self.renew, false);
        self.renew_host |= renew;
        self.renew_generation(self.kind(), needed, renew, system)
    }

    /// The same for downloads.
    pub fn renew_for_downloads(&mut self, needed: u64, system: &S) -> Result<bool, S::MemoryError> {
        let renew = mem::replace(&mut self.renew_host, false);
        self.renew_generation(MemoryKind::Host, needed, renew, system)
    }

    fn renew_generation(
        &mut self,
        kind: MemoryKind,
        needed: u64,
        renew: bool,
        system: &S,
    ) -> Result<bool, S::MemoryError> {
        let present = self.open(kind).map_or(0, |one| one.slot_size);
        if needed <= present && (!renew || needed == present) {
            return Ok(false);
        }
        // Within one format only plain bytes vary in size: leave room for longer frames.
        let slot_size = if renew || present == 0 { needed } else { needed.next_power_of_two() };
        let allocator = system.allocator(kind)?;
        self.generations.push(Generation::new(self.next_id, slot_size, kind, allocator));
        self.next_id += 1;
        Ok(true)
    }

    /// Returns a free slot of the open generation of this kind, or capacity for one, if there is
    /// such a generation. Of at most `max` slots, those beyond the `usual` number are needed by
    /// backlogs alone: they are of a generation of their own, which is freed after them.
    pub fn place(
        &mut self,
        kind: MemoryKind,
        usual: u32,
        max: u32,
        system: &S,
        now: Instant,
    ) -> Option<Result<Vacancy<S>, NoSlot<S>>> {
        if let Some(slot) = self.free(kind, 0, now) {
            return Some(Ok(Vacancy::Free(slot)));
        }
        let current = self.open(kind)?;
        let (len, slot_size) = (current.len(), current.slot_size);
        let open = |one: &Generation<S>| one.is_open_overflow(kind, slot_size);
        if len < usual {
            let overflow: u32 = self.generations.iter().filter(|one| open(one)).map(Generation::len).sum();
            let place = self.open_mut(kind)?.place(max.saturating_sub(overflow), now);
            return Some(place.map_err(|error| full(error, max)));
        }
        if !self.generations.iter().any(open) {
            match system.allocator(kind) {
                // Behind the others, so that the newest own one stays the last of its kind.
                Ok(allocator) => {
                    let overflow = Generation::overflow(self.next_id, slot_size, kind, allocator);
                    self.generations.push(overflow);
                }
                Err(error) => return Some(Err(NoSlot::Memory(error))),
            }
            self.next_id += 1;
            self.note_backlog(now);
        }
        let overflow = self.generations.iter_mut().rfind(|one| open(one))?;
        Some(overflow.place(max.saturating_sub(len), now).map_err(|error| full(error, max)))
    }

    /// Makes a slot of memory that was allocated for it, unless there are `max` by now.
    pub fn add(
        &mut self,
        slot: &Unallocated<S>,
        memory: S::Memory,
        system: &S,
        max: u32,
        now: Instant,
    ) -> Option<S::Slot> {
        let generation = self.generation(slot.generation).filter(|one| !one.retired)?;
        let (kind, slot_size) = (generation.kind, generation.slot_size);
        // Meanwhile other threads may have made slots in the usual generation, and in its overflow.
        let current = self.open(kind).map(|one| one.id);
        let counts = |one: &&Generation<S>| {
            one.id == slot.generation || Some(one.id) == current || one.is_open_overflow(kind, slot_size)
        };
        let slots: u32 = self.generations.iter().filter(counts).map(Generation::len).sum();
        if slots >= max {
            return None;
        }
        let generation = self.generations.iter_mut().find(|one| one.id == slot.generation)?;
        Some(generation.add(memory, system, now))
    }

    /// Returns how many of these slots, by generation, further frames may take when they are free.
    /// Other sizes and kinds do not count: they are of no use to the writer.
    pub fn count_usable(&self, ids: impl Iterator<Item = u32>) -> usize {
        let kind = self.kind();
        let Some(current) = self.open(kind) else { return 0 };
        let is_usable =
            |one: &&Generation<S>| one.id == current.id || one.is_open_overflow(kind, current.slot_size);
        ids.filter_map(|id| self.generation(id)).filter(is_usable).count()
    }

    /// Returns the number of slots of the present generation of this kind, and of its overflow,
    /// with other holders than publications.
    pub fn held_upstream(&self, kind: MemoryKind, is_published: impl Fn(SlotId) -> bool) -> u32 {
        let Some(current) = self.newest(kind) else { return 0 };
        let (present, slot_size) = (current.id, current.slot_size);
        let open = self.generations.iter();
        let open = open.filter(|one| one.id == present || one.is_open_overflow(kind, slot_size));
        open.map(|one| one.count_held(|index| is_published(SlotId { generation: one.id, index }))).sum()
    }

    /// Returns the slot of an adopted allocation, if it has one.
    pub fn adopted(&self, id: S::AdoptedId) -> Option<S::Slot> {
        let mut open = self.generations.iter().filter(|one| one.is_adopted() && !one.retired);
        open.find_map(|one| one.adopted(id))
    }

    /// Makes a slot of an adopted allocation of this kind and size in bytes.
    pub fn adopt(
        &mut self,
        kind: MemoryKind,
        memory: S::Memory,
        size: u64,
        id: S::AdoptedId,
        system: &S,
        now: Instant,
    ) -> S::Slot {
        let is_open = |one: &Generation<S>| {
            one.is_adopted() && !one.retired && one.kind == kind && one.slot_size == size
        };
        let index = self.generations.iter().position(is_open).unwrap_or_else(|| {
            self.generations.insert(0, Generation::of_adopted(self.next_id, size, kind));
            self.next_id += 1;
            0
        });
        self.generations[index].adopt(memory, id, system, now)
    }

    /// Returns whether a slot is in adopted memory.
    pub fn is_adopted(&self, slot: &S::Slot) -> bool {
        self.generation(slot.id().generation).is_some_and(Generation::is_adopted)
    }

    /// Returns whether readers were asked to drop their imports of a slot. Of other slots than
    /// adopted ones, upstream holds none then.
    pub fn is_retired(&self, slot: &S::Slot) -> bool {
        self.generation(slot.id().generation).is_some_and(|one| one.retired)
    }

    /// Returns whether [`Slots::retired`] or something else than the present slots has to be looked
    /// after.
    pub fn has_old(&self) -> bool {
        let is_old = |one: &Generation<S>| one.retired || one.retired_slot_bytes() > 0;
        self.generations.len() > 1 || self.generations.iter().any(is_old) || !self.retired.is_empty()
    }

    /// Bytes of retired generations that a reader may keep from being freed, by generation.
    pub fn retired(&self) -> &BTreeMap<u32, u64> {
        &self.retired
    }

    /// Returns whether a generation is outdated: it is not one of the `current` ones, and
    /// publications alone hold its slots, `publications` of them each. The overflow of backlogs
    /// may stay for a while.
    pub fn is_outdated(
        &self,
        index: usize,
        current: &[Option<u32>],
        keeps_overflow: bool,
        publications: impl Fn(SlotId) -> usize,
    ) -> bool {
        let one = &self.generations[index];
        let of = |slot| publications(SlotId { generation: one.id, index: slot });
        let stays =
            one.is_adopted() || current.contains(&Some(one.id)) || keeps_overflow && one.is_overflow();
        !stays && !one.retired && one.is_held_by_publications_alone(of)
    }

    /// Retires a generation: nothing more is published in it. Returns its number and bytes; what
    /// readers keep of it is noted by [`Slots::note_retired`].
    pub fn retire(&mut self, index: usize) -> (u32, u64) {
        let generation = &mut self.generations[index];
        generation.retired = true;
        (generation.id, generation.bytes())
    }

    /// Retires all generations.
    pub fn retire_all(&mut self) {
        self.generations.iter_mut().for_each(|one| one.retired = true);
    }

    /// Notes a retired generation that a reader may keep from being freed. Readers that have it
    /// from before keep all of it, although slots may be freed since.
    pub fn note_retired(&mut self, generation: u32, bytes: u64) {
        let noted = self.retired.entry(generation).or_default();
        *noted = bytes.max(*noted);
    }

    /// Forgets retired generations that no reader imports. Memory that a reader imports stays
    /// allocated although the exporter has freed it.
    pub fn forget_retired(&mut self, is_imported: impl Fn(u32) -> bool) {
        self.retired.retain(|id, _| is_imported(*id));
    }

    /// Takes the free slots of a retired generation out, to be freed. Some kinds are freed after
    /// their imports.
    pub fn take_unused(&mut self, index: usize, is_imported: bool) -> Vec<S::Slot> {
        let generation = &mut self.generations[index];
        if generation.retired && !(is_imported && frees_imports_first(generation.kind)) {
            generation.take_unused()
        } else {
            Vec::new()
        }
    }

    /// Takes slots of a generation out of use.
    pub fn retire_slots(&mut self, index: usize, slots: Vec<S::Slot>) {
        slots.into_iter().for_each(|slot| self.generations[index].retire_slot(slot));
    }

    /// Takes retired slots out, to be freed: those that readers must drop first once no reader can
    /// have them any more.
    pub fn take_retired_slots(&mut self, may_be_imported: impl Fn(SlotId) -> bool) -> Vec<S::Slot> {
        let mut unused = Vec::new();
        for generation in &mut self.generations {
            let frees_imports_first = frees_imports_first(generation.kind);
            unused.extend(generation.take_dropped(|slot| frees_imports_first && may_be_imported(slot)));
        }
        unused
    }

    /// Forgets generations without memory, but for those in which slots may still be made: of an
    /// open stream, the `current` ones, and those that are not retired.
    pub fn remove_empty(&mut self, current: &[Option<u32>], closed: bool) {
        self.generations.retain(|one| {
            !one.has_no_memory() || (!closed && (current.contains(&Some(one.id)) || !one.retired))
        });
    }

    /// Notes that frames are in backlogs, or that slots were made for them.
    pub fn note_backlog(&mut self, now: Instant) {
        self.overflow_until = Some(now + KEPT);
    }

    /// Returns whether slots that only backlogs need are kept.
    pub fn keeps_overflow(&self, now: Instant) -> bool {
        self.overflow_until.is_some_and(|until| now < until)
    }

    /// The time of the next check for unused slots, if there are slots to be checked.
    pub fn trims_at(&self) -> Option<Instant> {
        self.trims_at
    }

    /// Number of slots that were taken out of use since they were not needed.
    pub fn trimmed(&self) -> u64 {
        self.trimmed
    }

    /// Begins checks after a slot was allocated; returns true if there were none.
    pub fn begin_trimming(&mut self, now: Instant) -> bool {
        let begins = self.trims_at.is_none();
        self.trims_at.get_or_insert(now + INTERVAL);
        begins
    }

    /// Returns whether a check for unused slots is due.
    pub fn is_check_due(&self, now: Instant) -> bool {
        self.trims_at.is_some_and(|at| at <= now)
    }

    /// Returns slots of a generation that were not in use since a time, but leaves `least`.
    pub fn find_unused(&mut self, index: usize, since: Instant, least: u32, now: Instant) -> Vec<S::Slot> {
        let generation = &mut self.generations[index];
        if may_shrink(generation, least) { generation.find_unused(since, least, now) } else { Vec::new() }
    }

    /// Ends a check that has taken so many slots out of use. Checks go on while there are more than
    /// `least` slots in a generation of an open stream.
    pub fn end_check(&mut self, trimmed: u64, least: u32, closed: bool, now: Instant) {
        self.trimmed += trimmed;
        let goes_on = !closed && self.generations.iter().any(|one| may_shrink(one, least));
        self.trims_at = goes_on.then(|| now + INTERVAL);
    }
}

fn may_shrink<S: System>(one: &Generation<S>, least: u32) -> bool {
    !one.is_adopted() && !one.is_overflow() && !one.retired && one.may_shrink(least)
}

/// Names the limit of all generations in the error of a full one.
fn full<S: System>(error: NoSlot<S>, max_slots: u32) -> NoSlot<S> {
    match error {
        NoSlot::Exhausted { .. } => NoSlot::Exhausted { max_slots },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{self, Fake, memory};

    const KIND: MemoryKind = MemoryKind::Vmm;
    const OTHER: MemoryKind = MemoryKind::Legacy;
    const SYSTEM: Fake = Fake { lacks: None, device_works: false };

    fn slots() -> Slots<Fake> {
        Slots::new(Selected { kind: KIND, why: String::new() })
    }

    /// Slots in a first generation of this size.
    fn slots_of(size: u64) -> Slots<Fake> {
        let mut slots = slots();
        assert!(renew(&mut slots, size));
        slots
    }

    fn renew(slots: &mut Slots<Fake>, needed: u64) -> bool {
        slots.renew_for_frames(needed, &SYSTEM).unwrap()
    }

    /// Takes a place for a frame, of a slot of its own if necessary.
    fn take(slots: &mut Slots<Fake>, usual: u32, max: u32, now: Instant) -> Option<fake::Slot> {
        match slots.place(slots.kind(), usual, max, &SYSTEM, now)? {
            Ok(Vacancy::Free(slot)) => Some(slot),
            Ok(Vacancy::Unallocated(vacancy)) => {
                slots.add(&vacancy, memory(vacancy.slot_size), &SYSTEM, max, now)
            }
            Err(NoSlot::Exhausted { max_slots }) => {
                assert_eq!(max_slots, max);
                None
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    /// The generation and the index of a slot.
    fn id(slot: &fake::Slot) -> (u32, u32) {
        (slot.id().generation, slot.id().index)
    }

    /// The numbers and slot sizes of all generations.
    fn sizes(slots: &Slots<Fake>) -> Vec<(u32, u64)> {
        slots.generations().iter().map(|one| (one.id, one.slot_size)).collect()
    }

    #[test]
    fn generation_begins_when_slots_do_not_suit() {
        let mut slots = slots_of(1000);
        for (needed, begins) in [(1000, false), (500, false), (1500, true), (2048, false), (100, false)] {
            assert_eq!(renew(&mut slots, needed), begins, "{needed} bytes in the same format");
        }
        // Longer frames of one format get room to spare. A new format gets slots of its very size.
        assert_eq!(sizes(&slots), [(1, 1000), (2, 2048)]);
        for (needed, begins) in [(2048, false), (100, true)] {
            slots.renew();
            assert_eq!(renew(&mut slots, needed), begins, "{needed} bytes in a new format");
            assert!(!renew(&mut slots, 60));
        }
        slots.select(Selected { kind: KIND, why: String::new() });
        assert!(renew(&mut slots, 50));
        assert_eq!(sizes(&slots), [(1, 1000), (2, 2048), (3, 100), (4, 50)]);
        assert!(slots.renew_for_frames(51, &Fake { lacks: Some(KIND), ..SYSTEM }).is_err());
        assert_eq!(slots.generation(3).unwrap().slot_size, 100);
    }

    /// A format whose memory cannot be had uses the slots of the former one: they are large enough.
    #[test]
    fn format_without_memory_keeps_larger_slots() {
        let mut slots = slots_of(1000);
        slots.renew();
        assert!(slots.renew_for_frames(100, &Fake { lacks: Some(KIND), ..SYSTEM }).is_err());
        assert!(!renew(&mut slots, 100));
        assert!(renew(&mut slots, 1001), "they are too small");
    }

    /// A reader keeps all of a retired generation that it imported, whatever a later one gets of
    /// it.
    #[test]
    fn retired_memory_is_not_counted_less_for_a_later_reader() {
        let mut slots = slots();
        slots.note_retired(1, 100);
        slots.note_retired(1, 40);
        assert_eq!(slots.retired()[&1], 100);
    }

    #[test]
    fn host_memory_has_generations_of_its_own() {
        let mut slots = slots_of(1000);
        let download = |slots: &mut Slots<Fake>, needed| slots.renew_for_downloads(needed, &SYSTEM).unwrap();
        assert!(download(&mut slots, 300) && !download(&mut slots, 200), "no new format");
        slots.renew();
        assert!(!renew(&mut slots, 1000) && !renew(&mut slots, 1000), "its slots have this size already");
        assert!(download(&mut slots, 200) && !download(&mut slots, 100));
        assert_eq!((slots.kind(), slots.open(KIND).map(|one| one.id)), (KIND, Some(1)));
        for (in_host, kind, needed, begins) in [
            (true, MemoryKind::Host, 100, true),
            (true, MemoryKind::Host, 50, false),
            (false, KIND, 500, true),
            (false, KIND, 400, false),
        ] {
            slots.use_host(in_host);
            assert_eq!((slots.kind(), renew(&mut slots, needed)), (kind, begins), "{needed} bytes");
        }
    }

    #[test]
    fn slots_beyond_usual_number_are_overflow() {
        let now = Instant::now();
        let mut slots = slots_of(100);
        let taken: Vec<_> = (0..4).map(|_| take(&mut slots, 2, 4, now).unwrap()).collect();
        assert_eq!(Vec::from_iter(taken.iter().map(id)), [(1, 0), (1, 1), (2, 0), (2, 1)]);
        assert!(slots.keeps_overflow(now), "a backlog needs them");
        assert!(take(&mut slots, 2, 4, now).is_none() && take(&mut slots, 4, 4, now).is_none());
        // Free usual slots come first, then free overflow slots.
        let [first, second, third, fourth] = taken.try_into().unwrap();
        drop(fourth);
        assert_eq!(id(&take(&mut slots, 2, 4, now).unwrap()), (2, 1));
        drop((second, third));
        assert_eq!(id(&slots.free(KIND, 100, now).unwrap()), (1, 1));
        assert!(slots.free(KIND, 101, now).is_none() && slots.free(OTHER, 0, now).is_none());
        assert!(slots.has(KIND, 100) && slots.has(KIND, 99) && !slots.has(KIND, 101));
        drop(first);
        // Slots of another size are of no use. The number of the overflow is not used again.
        slots.renew();
        assert!(renew(&mut slots, 50) && !slots.has(KIND, 50));
        assert_eq!(id(&take(&mut slots, 2, 4, now).unwrap()), (3, 0));
    }

    #[test]
    fn slot_that_exceeds_limit_by_now_is_not_added() {
        let now = Instant::now();
        let mut slots = slots_of(50);
        let _old = take(&mut slots, 9, 9, now);
        slots.renew();
        assert!(renew(&mut slots, 100));
        let place = |slots: &mut Slots<Fake>, usual| match slots.place(KIND, usual, 9, &SYSTEM, now) {
            Some(Ok(Vacancy::Unallocated(vacancy))) => vacancy,
            other => panic!("{other:?}"),
        };
        let (usual, overflow) = (place(&mut slots, 9), place(&mut slots, 0));
        assert_eq!((usual.generation, overflow.generation), (2, 3));
        let mut taken = Vec::new();
        for (vacancy, max, fits) in [
            (&usual, 1, true),
            (&usual, 1, false),
            (&overflow, 1, false),
            (&overflow, 2, true),
            (&usual, 2, false),
            (&overflow, 2, false),
            (&usual, 3, true),
        ] {
            let slot = slots.add(vacancy, memory(100), &SYSTEM, max, now);
            assert_eq!(slot.as_ref().map(|slot| slot.id().generation), fits.then_some(vacancy.generation));
            taken.extend(slot);
        }
        slots.retire_all();
        assert!(slots.add(&usual, memory(100), &SYSTEM, 9, now).is_none(), "nothing is published in it");
    }

    #[test]
    fn only_present_slots_count_as_usable_and_held() {
        let now = Instant::now();
        let mut slots = slots_of(50);
        let _old = take(&mut slots, 1, 1, now);
        slots.renew();
        assert_eq!((slots.count_usable([1].into_iter()), renew(&mut slots, 100)), (1, true));
        let _taken = [(); 3].map(|()| take(&mut slots, 2, 3, now).unwrap());
        assert_eq!(sizes(&slots), [(1, 50), (2, 100), (3, 100)]);
        assert_eq!(slots.count_usable([1, 2, 2, 3, 4].into_iter()), 3);
        assert_eq!(slots.held_upstream(KIND, |_| false), 3);
        assert_eq!(slots.held_upstream(KIND, |slot| slot == SlotId { generation: 2, index: 1 }), 2);
        assert_eq!(slots.held_upstream(OTHER, |_| false), 0);
    }

    #[test]
    fn adopted_allocations_share_generations_by_kind_and_size() {
        let now = Instant::now();
        let mut slots = slots_of(100);
        let own = take(&mut slots, 1, 1, now).unwrap();
        let adopt =
            |slots: &mut Slots<Fake>, kind, size, id| slots.adopt(kind, memory(size), size, id, &SYSTEM, now);
        let mut adopted = Vec::new();
        for (kind, size, place) in [
            (KIND, 100, (2, 0)),
            (KIND, 100, (2, 1)),
            (KIND, 200, (3, 0)),
            (OTHER, 100, (4, 0)),
            (OTHER, 200, (5, 0)),
            (KIND, 100, (2, 2)),
        ] {
            let number = adopted.len() as u32;
            adopted.push(adopt(&mut slots, kind, size, number));
            assert_eq!((number, id(&adopted[number as usize])), (number, place));
            assert_eq!(slots.adopted(number).as_ref().map(id), Some(place));
        }
        assert!(slots.is_adopted(&adopted[0]) && !slots.is_adopted(&own));
        assert_eq!(slots.open(KIND).map(|one| one.id), Some(1));
        // Nothing more is published in retired memory.
        let index = slots.generations().iter().position(|one| one.id == 2).unwrap();
        assert_eq!(slots.retire(index), (2, 300));
        assert!(slots.is_retired(&adopted[0]) && !slots.is_retired(&adopted[2]));
        assert!(slots.adopted(0).is_none());
        assert_eq!(id(&adopt(&mut slots, KIND, 100, 0)), (6, 0));
    }

    #[test]
    fn old_memory_is_looked_after() {
        let old = |change: fn(&mut Slots<Fake>)| {
            let (mut slots, now) = (slots_of(100), Instant::now());
            take(&mut slots, 1, 1, now);
            change(&mut slots);
            slots.has_old()
        };
        assert!(!slots().has_old() && !old(|_| {}));
        assert!(old(|slots| slots.retire_all()));
        assert!(old(|slots| slots.note_retired(1, 100)));
        assert!(old(|slots| {
            let slot = slots.free(KIND, 0, Instant::now()).unwrap();
            slots.retire_slots(0, vec![slot]);
        }));
        assert!(old(|slots| assert!(renew(slots, 200))));
        let mut slots = slots();
        slots.note_retired(1, 100);
        slots.note_retired(2, 200);
        slots.forget_retired(|generation| generation == 2);
        assert_eq!(slots.retired(), &BTreeMap::from([(2, 200)]));
    }

    #[test]
    fn generation_is_outdated_when_only_publications_hold_it() {
        let now = Instant::now();
        let mut slots = slots_of(50);
        slots.adopt(KIND, memory(50), 50, 0, &SYSTEM, now);
        slots.renew();
        assert!(renew(&mut slots, 100));
        drop([(); 2].map(|()| take(&mut slots, 1, 2, now).unwrap()));
        assert_eq!(sizes(&slots), [(2, 50), (1, 50), (3, 100), (4, 100)], "adopted, old, current, overflow");
        let held = slots.generations[1].add(memory(50), &SYSTEM, now);
        for (index, keeps_overflow, publications, expected) in [
            (0, false, 0, false),
            (1, false, 0, false),
            (1, false, 1, true),
            (1, true, 1, true),
            (2, false, 0, false),
            (3, false, 0, true),
            (3, true, 0, false),
        ] {
            let found = slots.is_outdated(index, &[None, Some(3)], keeps_overflow, |_| publications);
            assert_eq!(found, expected, "generation at {index}, {keeps_overflow}, {publications}");
        }
        slots.retire(1);
        assert!(!slots.is_outdated(1, &[], false, |_| 1), "it is retired already");
        drop(held);
    }

    #[test]
    fn memory_is_freed_after_its_imports_where_it_must_be() {
        // Whether it is freed: the kind, and whether the generation is retired and imported.
        for (kind, is_retired, is_imported, is_freed) in [
            (KIND, false, false, false),
            (KIND, true, false, true),
            (KIND, true, true, true),
            (OTHER, true, false, true),
            (OTHER, true, true, false),
            (OTHER, false, false, false),
        ] {
            let one_slot = || {
                let mut slots = Slots::new(Selected { kind, why: String::new() });
                assert!(renew(&mut slots, 100));
                let slot = take(&mut slots, 1, 1, Instant::now()).unwrap();
                (slots, slot)
            };
            let (mut slots, slot) = one_slot();
            drop(slot);
            if is_retired {
                slots.retire(0);
            }
            let freed = slots.take_unused(0, is_imported).len();
            assert_eq!(freed == 1, is_freed, "{kind:?}, {is_retired}, {is_imported}");
            // A slot that is retired alone follows the same rule.
            let (mut slots, slot) = one_slot();
            slots.retire_slots(0, if is_retired { vec![slot] } else { Vec::new() });
            assert_eq!(slots.take_retired_slots(|_| is_imported).len() == 1, is_freed);
        }
    }

    #[test]
    fn empty_generation_is_forgotten_when_it_gets_no_slots() {
        for (has_memory, is_current, is_retired, closed, stays) in [
            (true, false, true, true, true),
            (false, true, true, false, true),
            (false, false, false, false, true),
            (false, false, true, false, false),
            (false, true, false, true, false),
        ] {
            let mut slots = slots_of(100);
            if has_memory {
                take(&mut slots, 1, 1, Instant::now());
            }
            if is_retired {
                slots.retire_all();
            }
            slots.remove_empty(if is_current { &[Some(1)] } else { &[] }, closed);
            let row = (has_memory, is_current, is_retired, closed);
            assert_eq!(slots.generations().len() == 1, stays, "{row:?}");
        }
    }

    #[test]
    fn overflow_is_kept_for_a_while_after_the_last_backlog() {
        let (mut slots, start) = (slots(), Instant::now());
        assert!(!slots.keeps_overflow(start));
        slots.note_backlog(start);
        assert!(slots.keeps_overflow(start + KEPT - Duration::from_nanos(1)));
        assert!(!slots.keeps_overflow(start + KEPT));
    }

    #[test]
    fn unused_slots_are_checked_while_there_are_more_than_least() {
        let start = Instant::now();
        let mut slots = slots_of(100);
        drop([(); 2].map(|()| take(&mut slots, 2, 2, start).unwrap()));
        assert!(slots.trims_at().is_none() && !slots.is_check_due(start));
        assert!(slots.begin_trimming(start) && !slots.begin_trimming(start + INTERVAL));
        assert!(!slots.is_check_due(start) && slots.is_check_due(start + INTERVAL));
        for (least, closed, goes_on) in [(1, false, true), (2, false, false), (1, true, false)] {
            slots.end_check(3, least, closed, start + INTERVAL);
            assert_eq!(slots.trims_at(), goes_on.then_some(start + 2 * INTERVAL), "{least}, {closed}");
        }
        assert_eq!(slots.trimmed(), 9);
    }

    #[test]
    fn only_present_own_slots_are_trimmed() {
        let (start, mut slots) = (Instant::now(), slots_of(100));
        drop([(); 2].map(|()| take(&mut slots, 1, 2, start).unwrap()));
        drop(slots.adopt(KIND, memory(100), 100, 0, &SYSTEM, start));
        let later = start + KEPT;
        let unused =
            |slots: &mut Slots<Fake>| [0, 1, 2].map(|at| slots.find_unused(at, later, 0, later).len());
        // The adopted generation is the first one, the overflow the last one.
        assert_eq!(unused(&mut slots), [0, 1, 0]);
        assert!(slots.find_unused(1, later, 1, later).is_empty());
        slots.retire(1);
        assert_eq!(unused(&mut slots), [0, 0, 0]);
    }
}
