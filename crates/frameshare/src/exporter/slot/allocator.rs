// SPDX-License-Identifier: MIT OR Apache-2.0

//! The source of a generation's memory.

use crate::{
    exporter::resources::Attachment,
    memory::{Accounts, Allocation, Allocator, MemoryError, allocator},
    sys::Label,
};
use frameshare_core::exporter::system as core;
use frameshare_cuda::{context::Context, event::Event};
use frameshare_protocol::MemoryKind;
use std::sync::Arc;

/// The source of a generation's memory: kept memory of users, if there is some, or else fresh one.
/// Its methods may wait for the GPU: not with the state locked.
#[derive(Clone, Debug)]
pub struct SlotAllocator {
    allocator: Arc<dyn Allocator>,
    /// The context of the work that writes the slots, if they are in GPU memory.
    gpu: Option<Arc<Context>>,
    /// Kept memory, if they are in host memory.
    kept: Option<Accounts>,
}

impl SlotAllocator {
    /// A source of memory of this kind.
    pub fn new(
        kind: MemoryKind,
        gpu: Option<&Arc<Context>>,
        label: &Label,
        accounts: &Accounts,
    ) -> Result<Self, MemoryError> {
        let allocator = allocator(kind, gpu, label)?;
        let gpu = gpu.filter(|_| kind.is_gpu()).cloned();
        Ok(Self { allocator, gpu, kept: (kind == MemoryKind::Host).then(|| accounts.clone()) })
    }

    /// A source of host memory in tests.
    #[cfg(test)]
    pub fn of(allocator: Arc<dyn Allocator>) -> Self {
        Self { allocator, gpu: None, kept: None }
    }

    /// Returns kept memory, or else fresh one.
    pub fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
        match self.kept.as_ref().and_then(|kept| kept.take_slot(size)) {
            Some(kept) => Ok(kept),
            None => self.allocator.allocate(size),
        }
    }

    /// Returns an event for the work that writes a slot, if it is in GPU memory. Without one, a
    /// publication creates it.
    pub fn event(&self) -> Option<Event> {
        self.gpu.as_ref().and_then(|gpu| Event::new(gpu).ok())
    }
}

impl core::Allocator for SlotAllocator {
    type Attachment = Attachment;

    fn shared(&self) -> Option<Attachment> {
        self.allocator.fd().is_some().then(|| Attachment::Pool(self.allocator.clone()))
    }
}
