// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adopted GPU memory: another component allocated and owns it, such as a decoder's output
//! surfaces. It is shared in place by a legacy handle.

use super::{Address, Allocation, Handle, MemoryError, Operation};
use frameshare_cuda::{context::Context, memory::adopted};
use frameshare_protocol::MemoryKind;
use std::{any::Any, sync::Mutex};

/// An adopted allocation. Its owner is dropped when no reader imports it any more.
pub struct AdoptedAllocation {
    block: adopted::Block,
    // Behind a lock because it need not be `Sync`.
    _owner: Mutex<Option<Box<dyn Any + Send>>>,
}

impl std::fmt::Debug for AdoptedAllocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.block.fmt(f)
    }
}

/// Returns the identifier of the allocation that contains `pointer`: unlike its address, it is
/// never reused (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
///
/// # Errors
/// [`MemoryError`] if the pointer is not one of CUDA memory.
pub fn buffer_id(context: &Context, pointer: u64) -> Result<u64, MemoryError> {
    adopted::buffer_id(context, pointer).map_err(failed)
}

fn failed(error: frameshare_cuda::Error) -> MemoryError {
    MemoryError::of(Operation::Share, None, MemoryKind::Legacy)(error.into())
}

impl AdoptedAllocation {
    /// Adopts the whole allocation that contains `pointer`. Takes the owner only on success.
    ///
    /// # Errors
    /// [`MemoryError`] if the allocation cannot be shared with other processes.
    pub fn new(
        context: &Context,
        pointer: u64,
        owner: &mut Option<Box<dyn Any + Send>>,
    ) -> Result<Self, MemoryError> {
        let block = adopted::export(context, pointer).map_err(failed)?;
        Ok(Self { block, _owner: Mutex::new(owner.take()) })
    }
}

impl Allocation for AdoptedAllocation {
    fn address(&self) -> Address {
        Address::Device(self.block.base)
    }

    fn size(&self) -> u64 {
        self.block.size as u64
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &self.block.handle, fd: None }
    }
}
