//! The slots that share one size and kind of memory.

use super::slot::{AcquireError, Slot, SlotInner};
use crate::memory::{Allocation, Allocator, MemoryError, allocator, foreign::Foreign};
use frameshare_cuda::context::Context;
use frameshare_protocol::MemoryKind;
use std::{
    collections::BTreeMap,
    os::fd::BorrowedFd,
    sync::{Arc, OnceLock},
};

/// A generation, in the exporter's ledger.
#[derive(Debug)]
pub(super) struct Generation {
    pub id: u32,
    pub slot_size: u64,
    pub kind: MemoryKind,
    pub source: Source,
    slots: Vec<Arc<SlotInner>>,
    /// Readers have been told that nothing more is published in it.
    pub retired: bool,
}

/// Where the slots of a generation come from.
#[derive(Debug)]
pub(super) enum Source {
    /// They are ours.
    Allocated(Arc<dyn Allocator>),
    /// They are somebody else's, found by what CUDA names an allocation by.
    Foreign(BTreeMap<u64, u32>),
}

impl Generation {
    /// A generation of our own slots.
    pub fn new(
        id: u32,
        slot_size: u64,
        kind: MemoryKind,
        gpu: Option<&Arc<Context>>,
    ) -> Result<Self, MemoryError> {
        let source = Source::Allocated(allocator(kind, gpu)?);
        Ok(Self { id, slot_size, kind, source, slots: Vec::new(), retired: false })
    }

    /// A generation of somebody else's allocations, each of `slot_size` bytes.
    pub fn foreign(id: u32, slot_size: u64) -> Self {
        let source = Source::Foreign(BTreeMap::new());
        Self { id, slot_size, kind: MemoryKind::Legacy, source, slots: Vec::new(), retired: false }
    }

    /// Whether its slots are ours and of this kind.
    pub fn is_own(&self, kind: MemoryKind) -> bool {
        !self.is_foreign() && self.kind == kind
    }

    /// The same, and slots may still be taken from it.
    pub fn is_open(&self, kind: MemoryKind) -> bool {
        self.is_own(kind) && !self.retired
    }

    pub fn is_foreign(&self) -> bool {
        matches!(self.source, Source::Foreign(_))
    }

    /// The slot that an allocation of somebody else's has, if it has one.
    pub fn adopted(&self, buffer_id: u64) -> Option<Slot> {
        let Source::Foreign(known) = &self.source else { return None };
        known.get(&buffer_id).and_then(|index| self.slots.get(*index as usize)).cloned().map(Slot)
    }

    /// Makes a slot of somebody else's allocation.
    pub fn adopt(&mut self, memory: Foreign, buffer_id: u64, exporter: u64) -> Slot {
        let memory = Arc::new(memory);
        let slot = self.slot(memory, exporter);
        if let Source::Foreign(known) = &mut self.source {
            known.insert(buffer_id, slot.index);
        }
        self.slots.push(slot.clone());
        Slot(slot)
    }

    fn slot(&self, memory: Arc<dyn Allocation>, exporter: u64) -> Arc<SlotInner> {
        let (generation, index) = (self.id, self.len());
        let (kept, registered) = (OnceLock::new(), OnceLock::new());
        Arc::new(SlotInner { exporter, generation, index, kept, registered, memory })
    }

    /// The descriptor that importers need once for all slots, where the kind has one.
    pub fn pool(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Allocated(allocator) => allocator.fd(),
            Source::Foreign(_) => None,
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

    /// A slot that nobody holds.
    pub fn free(&mut self) -> Option<Slot> {
        // `get_mut` succeeds if ours is the only reference, and orders what the last holder did before.
        let free = self.slots.iter_mut().position(|slot| Arc::get_mut(slot).is_some())?;
        Some(Slot(self.slots[free].clone()))
    }

    /// A slot that nobody holds; a new one where there is none and there may be more.
    pub fn acquire(&mut self, max: u32, exporter: u64) -> Result<Slot, AcquireError> {
        if let Some(free) = self.free() {
            return Ok(free);
        }
        if self.len() >= max {
            return Err(AcquireError::Exhausted { max_slots: max });
        }
        let Source::Allocated(allocator) = &self.source else {
            return Err(AcquireError::Exhausted { max_slots: 0 });
        };
        let memory = allocator.allocate(self.slot_size)?;
        let slot = self.slot(memory, exporter);
        self.slots.push(slot.clone());
        Ok(Slot(slot))
    }

    /// How many slots are held by others than the `published` ones, of which each may be held upstream as well.
    pub fn count_held(&mut self, published: impl Fn(u32) -> bool) -> u32 {
        let held =
            self.slots.iter_mut().filter_map(|slot| Arc::get_mut(slot).is_none().then_some(slot.index));
        held.filter(|index| !published(*index)).count() as u32
    }

    /// Whether nobody but publications, of which a slot has `of(slot)`, refers to any slot.
    pub fn is_held_by_publications_alone(&self, of: impl Fn(u32) -> usize) -> bool {
        self.slots.iter().all(|slot| Arc::strong_count(slot) == 1 + of(slot.index))
    }

    /// Forgets the slots that nobody holds, and hands them over to be freed.
    pub fn take_unused(&mut self) -> Vec<Arc<SlotInner>> {
        self.slots.extract_if(.., |slot| Arc::get_mut(slot).is_some()).collect()
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.memory.size()).sum()
    }
}
