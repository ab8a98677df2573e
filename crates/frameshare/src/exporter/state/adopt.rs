// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adopted memory: slots in allocations of another component.

use super::State;
use crate::{
    exporter::{
        frame::CannotAdopt,
        slot::{AcquireError, Generation, Slot},
    },
    memory::{Address, Allocation, MemoryError, MemoryFault, Operation, adopted},
};
use frameshare_protocol::MemoryKind;
use std::any::Any;

impl State {
    /// Returns the slot of an adopted allocation: its existing one, or a new one.
    pub fn adopt(
        &mut self,
        pointer: u64,
        owner: Box<dyn Any + Send>,
        exporter: u64,
    ) -> Result<(Slot, u64), AcquireError> {
        // User code in Drop must not run under the lock.
        let mut owner = Some(owner);
        let adopted = self.adopt_from(pointer, &mut owner, exporter);
        self.dropped.extend(owner);
        adopted
    }

    /// Implements [`State::adopt`]; takes the owner if it makes a slot.
    fn adopt_from(
        &mut self,
        pointer: u64,
        owner: &mut Option<Box<dyn Any + Send>>,
        exporter: u64,
    ) -> Result<(Slot, u64), AcquireError> {
        if self.closed {
            return Err(AcquireError::Closed);
        }
        let Some(gpu) = self.config.gpu.clone() else {
            let (kind, cause) = (MemoryKind::Legacy, MemoryFault::NoContext);
            return Err(MemoryError::new(Operation::Share, None, kind, cause).into());
        };
        let buffer_id = adopted::buffer_id(&gpu, pointer)?;
        let open = |one: &Generation| one.is_adopted() && !one.retired;
        let known = self.generations.iter().filter(|one| open(one)).find_map(|one| one.adopted(buffer_id));
        let slot = match known {
            Some(slot) => slot,
            None => {
                let memory = adopted::AdoptedAllocation::new(&gpu, pointer, owner)?;
                let size = memory.size();
                // The slots of a generation are of one size.
                let fits = self.generations.iter().position(|one| open(one) && one.slot_size == size);
                let index = fits.unwrap_or_else(|| {
                    self.generations.insert(0, Generation::of_adopted(self.next_generation, size));
                    self.next_generation += 1;
                    0
                });
                self.generations[index].adopt(memory, buffer_id, exporter)
            }
        };
        self.note_local(&slot, MemoryKind::Legacy);
        let start = match slot.address() {
            Address::Device(start) => start,
            Address::Host(_) => pointer,
        };
        Ok((slot, pointer.saturating_sub(start)))
    }

    /// Names a reader that cannot read adopted memory, with the reason, if there is one.
    pub fn cannot_adopt(&self) -> Option<CannotAdopt> {
        self.links.iter().find_map(|link| {
            link.cannot_adopt().map(|why| CannotAdopt { reader: link.info.clone(), why: why.into() })
        })
    }

    /// Returns the reason why some reader cannot read a frame in this slot, if there is one.
    pub fn not_for_all(&self, slot: &Slot) -> Option<CannotAdopt> {
        self.is_adopted(slot).then(|| self.cannot_adopt()).flatten()
    }

    /// Returns whether a slot is in adopted memory.
    pub(super) fn is_adopted(&self, slot: &Slot) -> bool {
        self.generations.iter().any(|one| one.id == slot.0.id.generation && one.is_adopted())
    }
}
