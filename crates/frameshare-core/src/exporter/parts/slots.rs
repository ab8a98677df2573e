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

    /// Notes a retired generation that a reader may keep from being freed.
    pub fn note_retired(&mut self, generation: u32, bytes: u64) {
        self.retired.insert(generation, bytes);
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
