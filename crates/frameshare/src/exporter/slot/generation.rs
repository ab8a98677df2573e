// SPDX-License-Identifier: MIT OR Apache-2.0

//! One generation: the slots that share a size and a kind of memory.

use super::{AcquireError, Slot, SlotInner};
use crate::{
    memory::{Allocation, Allocator, MemoryError, adopted::AdoptedAllocation, allocator},
    sys::Label,
};
use frameshare_cuda::context::Context;
use frameshare_protocol::{MemoryKind, SlotId};
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

/// A generation, as the exporter's state records it.
#[derive(Debug)]
pub struct Generation {
    pub id: u32,
    pub slot_size: u64,
    pub kind: MemoryKind,
    source: Source,
    /// Its slots are needed only while readers have a backlog.
    is_overflow: bool,
    slots: Vec<Arc<SlotInner>>,
    /// Readers were asked to drop their imports: nothing more is published in it.
    pub retired: bool,
}

/// The source of a generation's slots.
#[derive(Debug)]
enum Source {
    /// The exporter's own allocator.
    Allocated(Arc<dyn Allocator>),
    /// Adopted allocations, indexed by `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    Adopted(BTreeMap<u64, u32>),
}

/// A place for a frame.
#[derive(Debug)]
pub enum Vacancy {
    /// A free slot.
    Free(Slot),
    /// Capacity for one more slot, to be allocated.
    Unallocated(Unallocated),
}

/// Capacity for one more slot of a generation. Allocation may wait for the GPU: not with the state
/// locked.
#[derive(Debug)]
pub struct Unallocated {
    pub generation: u32,
    allocator: Arc<dyn Allocator>,
    slot_size: u64,
}

impl Unallocated {
    pub fn allocate(&self) -> Result<Arc<dyn Allocation>, MemoryError> {
        self.allocator.allocate(self.slot_size)
    }
}

impl Generation {
    /// A generation of own slots.
    pub fn new(
        id: u32,
        slot_size: u64,
        kind: MemoryKind,
        gpu: Option<&Arc<Context>>,
        label: &Label,
    ) -> Result<Self, MemoryError> {
        let source = Source::Allocated(allocator(kind, gpu, label)?);
        Ok(Self { id, slot_size, kind, source, is_overflow: false, slots: Vec::new(), retired: false })
    }

    /// A generation of further own slots of this size, for the time of a backlog.
    pub fn overflow(
        id: u32,
        slot_size: u64,
        kind: MemoryKind,
        gpu: Option<&Arc<Context>>,
        label: &Label,
    ) -> Result<Self, MemoryError> {
        Ok(Self { is_overflow: true, ..Self::new(id, slot_size, kind, gpu, label)? })
    }

    /// A generation of adopted allocations, each of `slot_size` bytes.
    pub fn of_adopted(id: u32, slot_size: u64) -> Self {
        let source = Source::Adopted(BTreeMap::new());
        let kind = MemoryKind::Legacy;
        Self { id, slot_size, kind, source, is_overflow: false, slots: Vec::new(), retired: false }
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
    pub fn adopted(&self, buffer_id: u64) -> Option<Slot> {
        let Source::Adopted(known) = &self.source else { return None };
        known.get(&buffer_id).and_then(|index| self.slots.get(*index as usize)).cloned().map(Slot)
    }

    /// Makes a slot of an adopted allocation.
    pub fn adopt(&mut self, memory: AdoptedAllocation, buffer_id: u64, exporter: u64) -> Slot {
        let slot = self.add(Arc::new(memory), exporter);
        if let Source::Adopted(known) = &mut self.source {
            known.insert(buffer_id, slot.0.id.index);
        }
        slot
    }

    /// Makes a slot of fresh memory.
    pub fn add(&mut self, memory: Arc<dyn Allocation>, exporter: u64) -> Slot {
        let id = SlotId { generation: self.id, index: self.len() };
        let (kept, registered) = (OnceLock::new(), OnceLock::new());
        let slot =
            Arc::new(SlotInner { exporter, id, is_overflow: self.is_overflow, kept, registered, memory });
        self.slots.push(slot.clone());
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

    pub fn count_free(&mut self) -> u32 {
        self.slots.iter_mut().filter_map(Arc::get_mut).count() as u32
    }

    /// Returns a free slot.
    pub fn free(&mut self) -> Option<Slot> {
        // `get_mut` succeeds if this is the only reference, and orders the last holder's accesses
        // before.
        let free = self.slots.iter_mut().position(|slot| Arc::get_mut(slot).is_some())?;
        Some(Slot(self.slots[free].clone()))
    }

    /// Returns a free slot, or capacity to allocate one within `max`.
    pub fn place(&mut self, max: u32) -> Result<Vacancy, AcquireError> {
        if let Some(free) = self.free() {
            return Ok(Vacancy::Free(free));
        }
        if self.len() >= max {
            return Err(AcquireError::Exhausted { max_slots: max });
        }
        let Source::Allocated(allocator) = &self.source else {
            return Err(AcquireError::Exhausted { max_slots: 0 });
        };
        let (generation, allocator, slot_size) = (self.id, allocator.clone(), self.slot_size);
        Ok(Vacancy::Unallocated(Unallocated { generation, allocator, slot_size }))
    }

    /// Returns the number of slots with other holders than publications; a `published` slot may be
    /// held upstream as well.
    pub fn count_held(&self, published: impl Fn(u32) -> bool) -> u32 {
        let in_use = self.slots.iter().filter(|slot| Arc::strong_count(slot) > 1);
        in_use.filter(|slot| !published(slot.id.index)).count() as u32
    }

    /// Returns whether publications are the only holders of all slots; a slot has `of(slot)` of
    /// them.
    pub fn is_held_by_publications_alone(&self, of: impl Fn(u32) -> usize) -> bool {
        self.slots.iter().all(|slot| Arc::strong_count(slot) == 1 + of(slot.id.index))
    }

    /// Removes free slots, and returns them to be freed.
    pub fn take_unused(&mut self) -> Vec<Arc<SlotInner>> {
        self.slots.extract_if(.., |slot| Arc::get_mut(slot).is_some()).collect()
    }

    /// Allocates further slots with another allocator.
    #[cfg(test)]
    pub fn set_allocator(&mut self, allocator: Arc<dyn Allocator>) {
        self.source = Source::Allocated(allocator);
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.memory.size()).sum()
    }
}
