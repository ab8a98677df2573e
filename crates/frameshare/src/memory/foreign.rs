//! GPU memory that somebody else allocated and still owns, such as a decoder's output surfaces, shared where it lies
//! by a legacy handle.

use super::{Address, Allocation, Handle, MemoryError};
use frameshare_cuda::{context::Context, memory::foreign};
use frameshare_protocol::MemoryKind;
use std::{any::Any, sync::Mutex};

/// An allocation of somebody else's. Its owner is told, by dropping what keeps it, when nobody imports it any more.
pub struct Foreign {
    found: foreign::Foreign,
    // Behind a lock only because it need not be `Sync`.
    _owner: Mutex<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for Foreign {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.found.fmt(f)
    }
}

/// What names the allocation that `pointer` lies in: unlike its address, never used for another one
/// (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
pub fn buffer_id(context: &Context, pointer: u64) -> Result<u64, MemoryError> {
    foreign::buffer_id(context, pointer).map_err(failed)
}

fn failed(error: frameshare_cuda::Error) -> MemoryError {
    MemoryError::while_doing("share", None, MemoryKind::Legacy)(error.into())
}

impl Foreign {
    /// The whole allocation that `pointer` lies in. Takes the owner only if it can be shared.
    pub fn new(
        context: &Context,
        pointer: u64,
        owner: &mut Option<Box<dyn Any + Send>>,
    ) -> Result<Self, MemoryError> {
        let found = foreign::export(context, pointer).map_err(failed)?;
        Ok(Self { found, _owner: Mutex::new(owner.take()) })
    }
}

impl Allocation for Foreign {
    fn address(&self) -> Address {
        Address::Device(self.found.base)
    }

    fn size(&self) -> u64 {
        self.found.size as u64
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &self.found.handle, fd: None }
    }
}
