// SPDX-License-Identifier: MIT OR Apache-2.0

//! One generation: the slots that share a size and a kind of memory.

use super::{AcquireError, Slot, SlotInner};
use crate::{
    memory::{Accounts, Allocation, Allocator, MemoryError, allocator},
    sys::{DmaBufId, Label},
};
use frameshare_cuda::{context::Context, event::Event};
use frameshare_protocol::{MemoryKind, SlotId};
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
    time::Instant,
};

/// A generation, as the exporter's state records it.
#[derive(Debug)]
pub struct Generation {
    pub id: u32,
    pub slot_size: u64,
    pub kind: MemoryKind,
    /// The context of the work that writes its own slots, if they are in GPU memory.
    gpu: Option<Arc<Context>>,
    /// Kept memory for its own slots, if they are in host memory.
    kept: Option<Accounts>,
    source: Source,
    /// Its slots are needed only while readers have a backlog.
    is_overflow: bool,
    slots: Vec<Entry>,
    /// The number of the next slot. None is used twice.
    next: u32,
    /// Slots that are retired although the generation is not, and whose memory readers must drop
    /// before it is freed.
    retired_slots: Vec<Arc<SlotInner>>,
    /// Readers were asked to drop their imports: nothing more is published in it.
    pub retired: bool,
}

/// The means to make own slots.
#[derive(Clone, Copy, Debug)]
pub struct Making<'a> {
    /// The exporter's GPU, if it uses one.
    pub gpu: Option<&'a Arc<Context>>,
    /// Names the stream's memory files.
    pub label: &'a Label,
    /// Kept memory is used again.
    pub accounts: &'a Accounts,
}

/// A slot, and the time at which it was last seen in use.
#[derive(Debug)]
struct Entry {
    slot: Arc<SlotInner>,
    used: Instant,
}

/// The source of a generation's slots.
#[derive(Debug)]
enum Source {
    /// The exporter's own allocator.
    Allocated(Arc<dyn Allocator>),
    /// Adopted allocations, by their identities.
    Adopted(BTreeMap<AdoptedId, u32>),
}

/// The identity of an adopted allocation, which no other one has while it is adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdoptedId {
    /// Of CUDA memory: `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    Cuda(u64),
    DmaBuf(DmaBufId),
}

/// A place for a frame.
#[derive(Debug)]
pub enum Vacancy {
    /// A free slot.
    Free(Slot),
    /// Capacity for one more slot, to be allocated.
    Unallocated(Unallocated),
}

/// Capacity for one more slot of a generation. Its methods may wait for the GPU: not with the state
/// locked.
#[derive(Debug)]
pub struct Unallocated {
    pub generation: u32,
    allocator: Arc<dyn Allocator>,
    slot_size: u64,
    gpu: Option<Arc<Context>>,
    kept: Option<Accounts>,
}

impl Unallocated {
    /// Returns kept memory, or else fresh one.
    pub fn allocate(&self) -> Result<Arc<dyn Allocation>, MemoryError> {
        match self.kept.as_ref().and_then(|kept| kept.take_slot(self.slot_size)) {
            Some(kept) => Ok(kept),
            None => self.allocator.allocate(self.slot_size),
        }
    }

    /// Returns an event for the work that writes the slot, if it is in GPU memory. Without one, a
    /// publication creates it.
    pub fn event(&self) -> Option<Event> {
        self.gpu.as_ref().and_then(|gpu| Event::new(gpu).ok())
    }
}

impl Generation {
    /// A generation of own slots.
    pub fn new(id: u32, slot_size: u64, kind: MemoryKind, making: &Making<'_>) -> Result<Self, MemoryError> {
        let &Making { gpu, label, accounts } = making;
        let source = Source::Allocated(allocator(kind, gpu, label)?);
        let gpu = gpu.filter(|_| kind.is_gpu()).cloned();
        let kept = (kind == MemoryKind::Host).then(|| accounts.clone());
        Ok(Self { gpu, kept, ..Self::of(id, slot_size, kind, source) })
    }

    /// A generation of further own slots of this size, for the time of a backlog.
    pub fn overflow(
        id: u32,
        slot_size: u64,
        kind: MemoryKind,
        making: &Making<'_>,
    ) -> Result<Self, MemoryError> {
        Ok(Self { is_overflow: true, ..Self::new(id, slot_size, kind, making)? })
    }

    /// A generation of adopted allocations of this kind, each of `slot_size` bytes.
    pub fn of_adopted(id: u32, slot_size: u64, kind: MemoryKind) -> Self {
        Self::of(id, slot_size, kind, Source::Adopted(BTreeMap::new()))
    }

    fn of(id: u32, slot_size: u64, kind: MemoryKind, source: Source) -> Self {
        let (slots, retired_slots) = (Vec::new(), Vec::new());
        Self {
            id,
            slot_size,
            kind,
            gpu: None,
            kept: None,
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

    pub fn is_overflow(&self) -> bool {
        self.is_overflow
    }

    /// Returns whether its slots are own ones of this kind and may still be taken.
    pub fn is_open(&self, kind: MemoryKind) -> bool {
        self.is_own(kind) && !self.retired
    }

    pub fn is_adopted(&self) -> bool {
        matches!(self.source, Source::Adopted(_))
    }

    /// Returns the slot of an adopted allocation, if it has one.
    pub fn adopted(&self, id: AdoptedId) -> Option<Slot> {
        let Source::Adopted(known) = &self.source else { return None };
        // Adopted slots are not retired one by one.
        known.get(&id).and_then(|index| self.slots.get(*index as usize)).map(Entry::slot)
    }

    /// Makes a slot of an adopted allocation.
    pub fn adopt(&mut self, memory: Arc<dyn Allocation>, id: AdoptedId, exporter: u64, now: Instant) -> Slot {
        let slot = self.add(memory, exporter, now);
        if let Source::Adopted(known) = &mut self.source {
            known.insert(id, slot.0.id.index);
        }
        slot
    }

    /// Makes a slot of fresh memory.
    pub fn add(&mut self, memory: Arc<dyn Allocation>, exporter: u64, now: Instant) -> Slot {
        let id = SlotId { generation: self.id, index: self.next };
        self.next += 1;
        let (kept, registered) = (OnceLock::new(), OnceLock::new());
        let slot =
            Arc::new(SlotInner { exporter, id, is_overflow: self.is_overflow, kept, registered, memory });
        self.slots.push(Entry { slot: slot.clone(), used: now });
        Slot(slot)
    }

    /// The allocator of own slots, whose descriptor importers need once for all slots, if the kind
    /// has one.
    pub fn pool(&self) -> Option<&Arc<dyn Allocator>> {
        match &self.source {
            Source::Allocated(allocator) => Some(allocator),
            Source::Adopted(_) => None,
        }
    }

    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of free slots, for people.
    pub fn count_free(&self) -> u32 {
        self.slots.iter().filter(|entry| Arc::strong_count(&entry.slot) == 1).count() as u32
    }

    /// Returns a free slot, the first one, so that the last ones stay unused while they are not
    /// needed.
    pub fn free(&mut self, now: Instant) -> Option<Slot> {
        let entry = self.slots.iter_mut().find_map(|entry| entry.is_free().then_some(entry))?;
        entry.used = now;
        Some(entry.slot())
    }

    /// Returns a free slot, or capacity to allocate one within `max`.
    pub fn place(&mut self, max: u32, now: Instant) -> Result<Vacancy, AcquireError> {
        if let Some(free) = self.free(now) {
            return Ok(Vacancy::Free(free));
        }
        if self.len() >= max {
            return Err(AcquireError::Exhausted { max_slots: max });
        }
        let Source::Allocated(allocator) = &self.source else {
            return Err(AcquireError::Exhausted { max_slots: 0 });
        };
        let (generation, slot_size) = (self.id, self.slot_size);
        let (allocator, gpu, kept) = (allocator.clone(), self.gpu.clone(), self.kept.clone());
        Ok(Vacancy::Unallocated(Unallocated { generation, allocator, slot_size, gpu, kept }))
    }

    /// Returns the number of slots with other holders than publications; a `published` slot may be
    /// held upstream as well.
    pub fn count_held(&self, published: impl Fn(u32) -> bool) -> u32 {
        let in_use = self.slots.iter().filter(|entry| Arc::strong_count(&entry.slot) > 1);
        in_use.filter(|entry| !published(entry.slot.id.index)).count() as u32
    }

    /// Returns whether publications are the only holders of all slots; a slot has `of(slot)` of
    /// them.
    pub fn is_held_by_publications_alone(&self, of: impl Fn(u32) -> usize) -> bool {
        self.slots.iter().all(|entry| Arc::strong_count(&entry.slot) == 1 + of(entry.slot.id.index))
    }

    /// Removes free slots, and returns them to be freed.
    pub fn take_unused(&mut self) -> Vec<Arc<SlotInner>> {
        self.slots.extract_if(.., Entry::is_free).map(|entry| entry.slot).collect()
    }

    /// Returns whether slots may be trimmed so that `least` are left. Those that a charged user was
    /// given stay: their memory would be kept anyway.
    pub fn may_shrink(&self, least: u32) -> bool {
        self.len() > least && self.slots.iter().any(|entry| !entry.is_given())
    }

    /// Returns free slots that were not in use since `since`, but leaves `least` slots: the last
    /// ones, which are the first to be unused.
    pub fn find_unused(&mut self, since: Instant, least: u32, now: Instant) -> Vec<Slot> {
        let spare = self.len().saturating_sub(least) as usize;
        let mut unused = Vec::new();
        for entry in self.slots.iter_mut().rev() {
            if !entry.is_free() {
                entry.used = now;
            } else if entry.used < since && unused.len() < spare && !entry.is_given() {
                unused.push(entry.slot());
            }
        }
        unused
    }

    /// Takes a slot out of use. It is kept until [`Generation::take_dropped`] returns it.
    pub fn retire_slot(&mut self, slot: Slot) {
        self.slots.retain(|entry| !Arc::ptr_eq(&entry.slot, &slot.0));
        self.retired_slots.push(slot.0);
    }

    /// Removes retired slots that are not `kept`, and returns them to be freed.
    pub fn take_dropped(&mut self, kept: impl Fn(SlotId) -> bool) -> Vec<Arc<SlotInner>> {
        self.retired_slots.extract_if(.., |slot| !kept(slot.id)).collect()
    }

    /// Bytes of retired slots.
    pub fn retired_slot_bytes(&self) -> u64 {
        self.retired_slots.iter().map(|slot| slot.memory.size()).sum()
    }

    /// Returns whether nothing is to be freed.
    pub fn has_no_memory(&self) -> bool {
        self.slots.is_empty() && self.retired_slots.is_empty()
    }

    /// Allocates further slots with another allocator.
    #[cfg(test)]
    pub fn set_allocator(&mut self, allocator: Arc<dyn Allocator>) {
        self.source = Source::Allocated(allocator);
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().map(|entry| entry.slot.memory.size()).sum()
    }
}

impl Entry {
    fn slot(&self) -> Slot {
        Slot(self.slot.clone())
    }

    /// Returns whether a charged user was given its memory.
    fn is_given(&self) -> bool {
        self.slot.memory.file().is_some_and(|file| file.is_given())
    }

    fn is_free(&mut self) -> bool {
        // `get_mut` succeeds if this is the only reference, and orders the last holder's accesses
        // before.
        Arc::get_mut(&mut self.slot).is_some()
    }
}
