// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots, from the view of their holders.

mod allocator;
mod draft;

pub use allocator::SlotAllocator;
pub use draft::Draft;

use super::{error::Interrupted, resources::Attachment};
use crate::{
    foreign::Foreign,
    gpu::DropWhenIdle,
    memory::{Address, Allocation, MemoryError, host::HostFile},
    sys::DmaBufId,
};
use frameshare_core::exporter::system as core;
use frameshare_cuda::host::Registration;
use frameshare_protocol::SlotId;
use std::{
    any::Any,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

/// An exported allocation that holds one frame.
///
/// A clone keeps the slot from being used for another frame. The slot is free when the last clone
/// is dropped, every lease on publications in it has ended, and the work that writes them is done.
/// Its memory lives as long as any clone.
#[derive(Clone, Debug)]
pub struct Slot(pub(in crate::exporter) Arc<SlotInner>);

/// The identity of an adopted allocation, which no other one has while it is adopted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AdoptedId {
    /// Of CUDA memory: `CU_POINTER_ATTRIBUTE_BUFFER_ID`.
    Cuda(u64),
    DmaBuf(DmaBufId),
}

#[derive(Debug)]
pub struct SlotInner {
    /// The exporter that owns it.
    pub exporter: u64,
    pub id: SlotId,
    /// It is needed only while readers have a backlog.
    pub is_overflow: bool,
    // Declared before the memory, so that it is dropped first: the user data may refer to the
    // memory.
    pub kept: OnceLock<Foreign<Box<dyn Any + Send + Sync>>>,
    /// Set for a download target. The GPU writes it without the CPU's help if it is registered.
    pub registered: OnceLock<Option<DropWhenIdle<Registration>>>,
    pub memory: Arc<dyn Allocation>,
}

/// The purpose of an acquired slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Upstream writes the slot and holds it without limit. Refused where it would take slots that
    /// are reserved for the readers' credit.
    Pool,
    /// The caller copies a frame into it, publishes it and drops it.
    Copy,
    /// As `Copy`, in one of the present slots: for a caller whose attempt to get a further one has
    /// just failed. Nothing is allocated, unless the writer is far ahead of its GPU, and the GPU
    /// writes no slot within 0.1 s.
    Reuse,
}

impl From<Interrupted> for AcquireError {
    fn from(Interrupted: Interrupted) -> Self {
        Self::Interrupted
    }
}

/// The reason why there is no slot.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// All slots within the limit are in use.
    #[error("all {max_slots} slots are in use: allow more slots")]
    Exhausted {
        /// The limit.
        max_slots: u32,
    },
    /// A new slot could not be allocated, or its memory not be shared.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The wait for a slot was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The stream is closed: readers may still read its slots.
    #[error("the exporter is closed")]
    Closed,
    /// The engine has failed, and closed the stream; with the reason, for people.
    #[error("the exporter has failed: {0}")]
    Failed(String),
    /// No slot can have this size.
    #[error("a slot of {0} bytes is impossible")]
    Size(u64),
}

impl Slot {
    /// A slot of the exporter with this number.
    pub(in crate::exporter) fn new(
        exporter: u64,
        id: SlotId,
        is_overflow: bool,
        memory: Arc<dyn Allocation>,
    ) -> Self {
        let (kept, registered) = (OnceLock::new(), OnceLock::new());
        Self(Arc::new(SlotInner { exporter, id, is_overflow, kept, registered, memory }))
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.0.memory.size()
    }

    /// Returns whether the slot is freed soon after readers have caught up: a pool should return it
    /// as soon as upstream does.
    pub fn is_overflow(&self) -> bool {
        self.0.is_overflow
    }

    /// Address of the memory.
    pub fn address(&self) -> Address {
        self.0.memory.address()
    }

    /// Pointer for the CPU to write through; `None` for GPU memory.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        match self.address() {
            Address::Host(start) => Some(start),
            Address::Device(_) => None,
        }
    }

    /// Returns whether the GPU writes the host memory without the CPU's help.
    pub(in crate::exporter) fn is_registered(&self) -> bool {
        self.0.registered.get().is_some_and(Option::is_some)
    }

    /// Returns user data of the slot, made on first use. It lives as long as the slot's memory,
    /// whatever holds the slot meanwhile, and is dropped before the memory is freed. It must not
    /// hold the slot, which would then never be free. `None` if data of another type is present.
    pub fn keep_with_slot<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.kept.get_or_init(|| Foreign::new(Box::new(make()))).downcast_ref()
    }
}

impl core::Slot for Slot {
    type Attachment = Attachment;
    type File = HostFile;

    #[inline]
    fn id(&self) -> SlotId {
        self.0.id
    }

    #[inline]
    fn size(&self) -> u64 {
        self.0.memory.size()
    }

    #[inline]
    fn is_in_host(&self) -> bool {
        self.as_ptr().is_some()
    }

    #[inline]
    fn is_dma_buf(&self) -> bool {
        self.0.memory.dma_buf().is_some()
    }

    fn file(&self) -> Option<&Arc<HostFile>> {
        self.0.memory.file()
    }

    fn is_registered(&self) -> bool {
        self.is_registered()
    }

    #[inline]
    fn is_free(&mut self) -> bool {
        // `get_mut` succeeds if this is the only reference, and orders the last holder's accesses
        // before.
        Arc::get_mut(&mut self.0).is_some()
    }

    #[inline]
    fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    fn handle(&self) -> (Vec<u8>, Option<Attachment>) {
        let handle = self.0.memory.handle();
        let memory = handle.fd.map(|_| Attachment::Slot(self.0.memory.clone()));
        (handle.bytes.to_vec(), memory)
    }
}
