// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of other components that is adopted.

use super::State;
use crate::{
    exporter::slot::{AcquireError, AdoptedId, Slot},
    memory::{Address, Allocation as _, MemoryError, MemoryFault, Operation, adopted, dma_buf::DmaBuf},
    sys::DmaBufId,
};
use frameshare_protocol::MemoryKind;
use std::{any::Any, sync::Arc};

impl State {
    /// Returns the slot of an adopted allocation, its existing one or a new one, and the offset of
    /// `pointer` from its start in bytes. The owner is dropped when the memory is not needed any
    /// more; at once if it makes no slot.
    pub fn adopt_cuda(
        &mut self,
        pointer: u64,
        owner: Box<dyn Any + Send>,
    ) -> Result<(Slot, u64), AcquireError> {
        // User code in Drop must not run under the lock.
        let mut owner = Some(owner);
        let adopted = self.adopt_from(pointer, &mut owner);
        self.deferred_mut().drop_user_data(owner);
        adopted
    }

    /// Implements [`State::adopt_cuda`]; takes the owner if it makes a slot.
    fn adopt_from(
        &mut self,
        pointer: u64,
        owner: &mut Option<Box<dyn Any + Send>>,
    ) -> Result<(Slot, u64), AcquireError> {
        if self.is_closed() {
            return Err(AcquireError::Closed);
        }
        let Some(gpu) = self.gpu().cloned() else {
            let (kind, cause) = (MemoryKind::Legacy, MemoryFault::NoContext);
            return Err(MemoryError::new(Operation::Share, None, kind, cause).into());
        };
        let id = AdoptedId::Cuda(adopted::buffer_id(&gpu, pointer)?);
        let slot = match self.adopted(id)? {
            Some(slot) => {
                self.note_local(&slot, MemoryKind::Legacy);
                slot
            }
            None => {
                let memory = Arc::new(adopted::AdoptedAllocation::new(&gpu, pointer, owner)?);
                let size = memory.size();
                self.adopt(MemoryKind::Legacy, memory, size, id)?
            }
        };
        let start = match slot.address() {
            Address::Device(start) => start,
            Address::Host(_) => pointer,
        };
        Ok((slot, pointer.saturating_sub(start)))
    }

    /// Returns the slot of a dma-buf that has one, among those that are in use.
    ///
    /// # Errors
    /// [`AcquireError::Closed`].
    pub fn known_dma_buf(&self, id: DmaBufId) -> Result<Option<Slot>, AcquireError> {
        Ok(self.adopted(AdoptedId::DmaBuf(id))?)
    }

    /// Makes a slot of a dma-buf, unless it has one by now.
    pub fn adopt_dma_buf(&mut self, id: DmaBufId, memory: Arc<DmaBuf>) -> Result<Slot, AcquireError> {
        let size = memory.size();
        Ok(self.adopt(MemoryKind::DmaBuf, memory, size, AdoptedId::DmaBuf(id))?)
    }
}
