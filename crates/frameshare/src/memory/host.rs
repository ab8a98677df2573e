// SPDX-License-Identifier: MIT OR Apache-2.0

//! Host memory: memory files that are sealed against resizing and against readers' writes.

use super::{
    Address, Allocation, Allocator, Handle, Import, Importer, MemoryError, MemoryFault, Operation, length,
};
use crate::sys::{Label, Mapping, SealedAgainst, check_memfd, memfd};
use frameshare_protocol::MemoryKind;
use std::{
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
};

/// Allocates and imports host memory. The label names its memory files.
#[derive(Clone, Debug, Default)]
pub struct Host(pub Label);

#[derive(Debug)]
struct HostAllocation {
    fd: OwnedFd,
    mapping: Mapping,
    size: u64,
}

#[derive(Debug)]
struct HostImport(Mapping);

impl Allocator for Host {
    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
        let allocate = || {
            let fd = memfd(&self.0.file("slot"), size)?;
            // The exporter's own mapping is made before the seal, so only that one stays writable.
            let mapping = Mapping::writable(&fd, length(size)?)?;
            SealedAgainst::ResizingAndWriting.seal(&fd)?;
            Ok(HostAllocation { fd, mapping, size })
        };
        Ok(Arc::new(allocate().map_err(MemoryError::of(Operation::Allocate, size, MemoryKind::Host))?))
    }
}

impl Importer for Host {
    fn import(
        &self,
        size: u64,
        _handle: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError> {
        let import = || {
            let fd = fd.ok_or(MemoryFault::NoDescriptor)?;
            check_memfd(fd, size, SealedAgainst::ResizingAndWriting)?;
            Ok(Mapping::read_only(fd, length(size)?)?)
        };
        let mapping = import().map_err(MemoryError::of(Operation::Import, size, MemoryKind::Host))?;
        Ok(Arc::new(HostImport(mapping)))
    }
}

impl Allocation for HostAllocation {
    fn address(&self) -> Address {
        Address::Host(self.mapping.as_ptr())
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &[], fd: Some(self.fd.as_fd()) }
    }
}

impl Import for HostImport {
    fn address(&self) -> Address {
        Address::Host(self.0.as_ptr())
    }
}
