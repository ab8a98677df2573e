// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adopted memory: slots in allocations of another component, by CUDA or as dma-bufs.

use super::State;
use crate::{
    exporter::{
        frame::{CannotAdopt, PublishError},
        link::Link,
        slot::{AcquireError, AdoptedId, Generation, Slot},
        unpublished::NotPublished,
    },
    memory::{Address, MemoryError, MemoryFault, Operation, adopted, dma_buf::DmaBuf},
    sys::DmaBufId,
};
use frameshare_protocol::MemoryKind;
use std::{any::Any, sync::Arc, time::Instant};

/// Maximum number of dma-bufs in a generation. A further one begins another generation: a producer
/// that makes new ones all the time does not fill this process and its readers with descriptors.
const MAX_DMA_BUFS: u32 = 64;

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
        self.deferred.drop_user_data(owner);
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
        let id = AdoptedId::Cuda(adopted::buffer_id(&gpu, pointer)?);
        let slot = match self.slots.adopted(id) {
            Some(slot) => slot,
            None => {
                let memory = adopted::AdoptedAllocation::new(&gpu, pointer, owner)?;
                self.slots.adopt(MemoryKind::Legacy, Arc::new(memory), id, exporter, Instant::now())
            }
        };
        self.note_local(&slot, MemoryKind::Legacy);
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
        if self.closed { Err(AcquireError::Closed) } else { Ok(self.slots.adopted(AdoptedId::DmaBuf(id))) }
    }

    /// Makes a slot of a dma-buf, unless it has one by now.
    pub fn adopt_dma_buf(
        &mut self,
        id: DmaBufId,
        memory: Arc<DmaBuf>,
        exporter: u64,
    ) -> Result<Slot, AcquireError> {
        if let Some(slot) = self.known_dma_buf(id)? {
            return Ok(slot);
        }
        let is_full =
            |one: &Generation| one.kind == MemoryKind::DmaBuf && !one.retired && one.len() >= MAX_DMA_BUFS;
        if let Some(full) = self.slots.generations().iter().position(is_full) {
            self.retire_generation(full);
            self.retire();
        }
        Ok(self.slots.adopt(MemoryKind::DmaBuf, memory, AdoptedId::DmaBuf(id), exporter, Instant::now()))
    }

    /// Names a reader that cannot read adopted memory of this kind, with the reason, if there is
    /// one.
    pub fn cannot_adopt(&self, kind: MemoryKind) -> Option<CannotAdopt> {
        self.readers.present().iter().find_map(|link| {
            link.cannot_adopt(kind).map(|why| CannotAdopt { reader: link.info.clone(), why: why.into() })
        })
    }

    /// Returns the reason why a frame in adopted memory cannot be published where it is, if there
    /// is one: it would join a backlog, although its owner may need the memory soon, or some reader
    /// cannot read it.
    pub fn refusal_in_place(&self, slot: &Slot) -> Option<NotPublished> {
        let kind = self.slots.generation(slot.0.id.generation).filter(|one| one.is_adopted())?.kind;
        let waits = |link: &Link| link.is_lossless() && !link.downloads() && link.is_full();
        if self.readers.present().iter().any(waits) {
            return Some(PublishError::WouldWait.into());
        }
        self.cannot_adopt(kind).map(|why| PublishError::NotForAll(why).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Endpoint, Interrupt, Wait,
        exporter::{Config, Exporter, Frame, InvalidFrame},
        fence::Written,
        memory::{Allocator as _, host::Host},
        reader::{self, Item, Reader},
    };
    use frameshare_protocol::Sequence;
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(60);
    const SIZE: u64 = 4096;

    /// Returns the slot of memory of another component, for which host memory stands in.
    fn adopted(exporter: &Exporter) -> Slot {
        let memory = Host::default().allocate(SIZE).unwrap();
        exporter.locked(|state| {
            let id = exporter.0.shared.id;
            state.slots.adopt(MemoryKind::Host, memory, AdoptedId::Cuda(1), id, Instant::now())
        })
    }

    fn publish(exporter: &Exporter, slot: &Slot) -> Result<Sequence, PublishError> {
        exporter.publish(Frame::new(slot, SIZE, Written::Cpu), Wait::Forever)
    }

    fn take(reader: &mut Reader) -> Sequence {
        match reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap() {
            Some(Item::Frame(frame)) => frame.descriptor().sequence,
            other => panic!("{other:?}"),
        }
    }

    /// Before and after the reader has acknowledged the retirement.
    #[test]
    fn retired_slot_is_refused_and_readers_go_on() {
        for acknowledges in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
            let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
            let interrupt = Interrupt::new().unwrap();
            let mut reader = Reader::connect(&endpoint, reader::Config::default(), &interrupt).unwrap();
            let start = Instant::now();
            let wait_until = |what: &str, condition: &mut dyn FnMut() -> bool| {
                while !condition() {
                    assert!(start.elapsed() < PATIENCE, "{what}");
                }
            };
            wait_until("no reader", &mut || exporter.reader_count() == 1);
            let slot = adopted(&exporter);
            assert_eq!(publish(&exporter, &slot), Ok(Sequence(1)));
            assert_eq!(take(&mut reader), Sequence(1));
            exporter.retire_adopted();
            if acknowledges {
                wait_until("no acknowledgement", &mut || {
                    assert!(reader.next(Some(Duration::ZERO), &interrupt).unwrap().is_none());
                    exporter.locked(|state| state.readers[0].imports.generations().count() == 0)
                });
            }
            let refused = Err(PublishError::Invalid(InvalidFrame::Retired));
            assert_eq!(publish(&exporter, &slot), refused, "acknowledged: {acknowledges}");
            // Adopted again, it is of another generation.
            assert_eq!(publish(&exporter, &adopted(&exporter)), Ok(Sequence(2)));
            assert_eq!(take(&mut reader), Sequence(2));
        }
    }
}
