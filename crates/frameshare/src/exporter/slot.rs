//! Slots, as their holders see them.

use super::Interrupted;
use crate::{
    idle::WhenIdle,
    memory::{Address, Allocation, MemoryError},
};
use frameshare_cuda::host::Registration;
use std::{
    any::Any,
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

/// An exported allocation that holds one frame.
///
/// Whoever holds one keeps it from being used for another frame. It is free again when the last clone is gone
/// and every lease on what was published in it has ended. Its memory lives as long as any holder.
#[derive(Clone, Debug)]
pub struct Slot(pub(super) Arc<SlotInner>);

#[derive(Debug)]
pub(super) struct SlotInner {
    /// The exporter that it belongs to.
    pub exporter: u64,
    pub generation: u32,
    pub index: u32,
    // Before the memory, so that it is dropped before: what is kept may refer to it.
    pub kept: OnceLock<Box<dyn Any + Send + Sync>>,
    /// Set when frames are downloaded to it: the GPU writes it without the CPU's help.
    pub registered: OnceLock<WhenIdle<Registration>>,
    pub memory: Arc<dyn Allocation>,
}

/// What a slot is acquired for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Somebody upstream will write it, and hold it for as long as they like. Refused where it would take slots
    /// that the readers' credit was promised.
    Pool,
    /// The caller will copy a frame into it, publish it and let it go.
    Copy,
}

impl From<Interrupted> for AcquireError {
    fn from(Interrupted: Interrupted) -> Self {
        Self::Interrupted
    }
}

/// Why there is no slot.
#[derive(Debug, thiserror::Error)]
pub enum AcquireError {
    /// All slots that there may be are in use.
    #[error("all {max_slots} slots are in use: raise max-slots")]
    Exhausted {
        /// How many there may be.
        max_slots: u32,
    },
    /// A new slot could not be allocated, or memory not be shared.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The wait for one was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The stream has ended: readers may still look at its slots.
    #[error("the exporter is closed")]
    Closed,
    /// The size is none that a slot can have.
    #[error("a slot of {0} bytes is impossible")]
    Size(u64),
}

impl Slot {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.0.memory.size()
    }

    /// Where it lies.
    pub fn address(&self) -> Address {
        self.0.memory.address()
    }

    /// Where it lies, for the CPU to write; `None` for memory of a GPU.
    pub fn as_ptr(&self) -> Option<NonNull<u8>> {
        match self.address() {
            Address::Host(start) => Some(start),
            Address::Device(_) => None,
        }
    }

    /// What the exporter's user keeps with the slot as long as its memory exists, whoever holds the slot meanwhile: it is
    /// made the first time, and dropped before the memory is freed. It must not hold the slot, which would never be free
    /// again. `None` if something of another type is kept there.
    pub fn keep_with_slot<T: Any + Send + Sync>(&self, make: impl FnOnce() -> T) -> Option<&T> {
        self.0.kept.get_or_init(|| Box::new(make())).downcast_ref()
    }

    /// Whether it is one of this exporter's.
    pub fn belongs_to(&self, exporter: &super::Exporter) -> bool {
        self.0.exporter == exporter.0.shared.id
    }
}
