// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory with a file descriptor of its own: it outlives its exporter, and readers map it
//! read-only.

use super::{
    Address, Allocation, Allocator, Handle, Import, Importer, MemoryError, MemoryFault, Operation, clear,
    length,
};
use crate::gpu::DropWhenIdle;
use frameshare_cuda::{context::Context, host::Access, memory::vmm};
use frameshare_protocol::MemoryKind;
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Allocates and imports such memory, for the device of a context.
#[derive(Clone, Debug)]
pub struct Vmm(pub(super) Arc<Context>);

#[derive(Debug)]
struct VmmAllocation {
    _memory: DropWhenIdle<vmm::Allocation>,
    start: u64,
    size: u64,
    fd: OwnedFd,
}

#[derive(Debug)]
struct VmmImport(vmm::Import);

impl Allocator for Vmm {
    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
        let allocate = || {
            let memory = vmm::Allocation::new(&self.0, length(size)?)?;
            clear(&self.0, memory.ptr(), memory.size())?;
            let (fd, start, size) = (memory.export()?, memory.ptr(), memory.size() as u64);
            Ok(VmmAllocation { _memory: DropWhenIdle::new(&self.0, memory), start, size, fd })
        };
        Ok(Arc::new(allocate().map_err(MemoryError::of(Operation::Allocate, size, MemoryKind::Vmm))?))
    }
}

impl Importer for Vmm {
    fn import(
        &self,
        size: u64,
        _handle: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError> {
        let import = || {
            let fd = fd.ok_or(MemoryFault::NoDescriptor)?;
            Ok(vmm::Import::new(&self.0, fd, length(size)?, Access::Read)?)
        };
        let import = import().map_err(MemoryError::of(Operation::Import, size, MemoryKind::Vmm))?;
        Ok(Arc::new(VmmImport(import)))
    }
}

impl Allocation for VmmAllocation {
    fn address(&self) -> Address {
        Address::Device(self.start)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &[], fd: Some(self.fd.as_fd()) }
    }
}

impl Import for VmmImport {
    fn address(&self) -> Address {
        Address::Device(self.0.ptr())
    }
}
