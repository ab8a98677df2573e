// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adopted memory: slots in allocations of another component, by CUDA or as dma-bufs.

use super::State;
use crate::exporter::{
    link::Link,
    notice::ReaderInfo,
    slot::{Generation, NoSlot},
    system::{Slot, System},
    unpublished::NotPublished,
};
use frameshare_protocol::MemoryKind;

/// Maximum number of dma-bufs in a generation. A further one begins another generation: a producer
/// that makes new ones all the time does not fill this process and its readers with descriptors.
const MAX_DMA_BUFS: u32 = 64;

impl<S: System> State<S> {
    /// Returns the slot of an adopted allocation, if it has one that is in use.
    ///
    /// # Errors
    /// [`NoSlot::Closed`].
    pub fn adopted(&self, id: S::AdoptedId) -> Result<Option<S::Slot>, NoSlot<S>> {
        if self.closed { Err(NoSlot::Closed) } else { Ok(self.slots.adopted(id)) }
    }

    /// Makes a slot of an adopted allocation of this kind and size, unless it has one by now.
    ///
    /// # Errors
    /// [`NoSlot::Closed`].
    pub fn adopt(
        &mut self,
        kind: MemoryKind,
        memory: S::Memory,
        size: u64,
        id: S::AdoptedId,
    ) -> Result<S::Slot, NoSlot<S>> {
        if let Some(slot) = self.adopted(id)? {
            return Ok(slot);
        }
        let is_full =
            |one: &Generation<S>| one.kind == MemoryKind::DmaBuf && !one.retired && one.len() >= MAX_DMA_BUFS;
        if kind == MemoryKind::DmaBuf
            && let Some(full) = self.slots.generations().iter().position(is_full)
        {
            self.retire_generation(full);
            self.retire();
        }
        let slot = self.slots.adopt(kind, memory, size, id, &self.system, S::now());
        self.note_local(&slot, kind);
        Ok(slot)
    }

    /// Names a reader that cannot read adopted memory of this kind, with the reason, if there is
    /// one.
    pub fn cannot_adopt(&self, kind: MemoryKind) -> Option<(ReaderInfo, String)> {
        self.readers
            .present()
            .iter()
            .find_map(|link| link.cannot_adopt(kind).map(|why| (link.info.clone(), why.into())))
    }

    /// Returns the reason why a frame in adopted memory cannot be published where it is, if there
    /// is one: it would join a backlog, although its owner may need the memory soon, or some reader
    /// cannot read it.
    pub fn refusal_in_place(&self, slot: &S::Slot) -> Option<Box<NotPublished<S>>> {
        let kind = self.slots.generation(slot.id().generation).filter(|one| one.is_adopted())?.kind;
        let waits = |link: &Link<S>| link.is_lossless() && !link.downloads() && link.is_full();
        if self.readers.present().iter().any(waits) {
            return Some(NotPublished::WouldWait.into());
        }
        let cannot = self.cannot_adopt(kind);
        cannot.map(|(reader, why)| NotPublished::NotForAll { reader, why }.into())
    }
}
