//! The slots that share one size and kind of memory.

use super::slot::{AcquireError, Slot, SlotInner};
use crate::memory::Allocator;
use std::sync::Arc;

/// A generation, in the exporter's ledger.
#[derive(Debug)]
pub(super) struct Generation {
    pub id: u32,
    pub slot_size: u64,
    slots: Vec<Arc<SlotInner>>,
    /// Readers have been told that nothing more is published in it.
    pub retired: bool,
}

impl Generation {
    pub fn new(id: u32, slot_size: u64) -> Self {
        Self { id, slot_size, slots: Vec::new(), retired: false }
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

    /// A slot that nobody holds; a new one where there is none and there may be more.
    pub fn acquire(
        &mut self,
        max: u32,
        exporter: u64,
        allocator: &dyn Allocator,
    ) -> Result<Slot, AcquireError> {
        // `get_mut` succeeds if ours is the only reference, and orders what the last holder did before.
        if let Some(free) = self.slots.iter_mut().position(|slot| Arc::get_mut(slot).is_some()) {
            return Ok(Slot(self.slots[free].clone()));
        }
        if self.len() >= max {
            return Err(AcquireError::Exhausted { max_slots: max });
        }
        let memory = allocator.allocate(self.slot_size)?;
        let slot = Arc::new(SlotInner { exporter, generation: self.id, index: self.len(), memory });
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

    /// Forgets the slots that nobody holds, and so frees them.
    pub fn free_unused(&mut self) {
        self.slots.retain_mut(|slot| Arc::get_mut(slot).is_none());
    }
}
