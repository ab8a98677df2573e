//! GPU memory by CUDA's first interface for sharing: 64 bytes name a whole block of 2 MiB or a multiple.
//!
//! Imports are given up before the exporter frees, one context per process and device may import, and a process
//! cannot import what it allocated itself.

use super::{Address, Allocation, Allocator, Handle, Import, Importer, MemoryError, clear, length};
use frameshare_cuda::{context::Context, memory::legacy};
use frameshare_protocol::MemoryKind;
use std::{os::fd::OwnedFd, sync::Arc};

/// Allocates and imports such memory, in a context.
#[derive(Clone, Debug)]
pub struct Legacy(pub(super) Arc<Context>);

#[derive(Debug)]
struct LegacyAllocation {
    memory: legacy::Allocation,
    handle: legacy::Handle,
}

#[derive(Debug)]
struct LegacyImport(legacy::Import);

impl Allocator for Legacy {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Legacy
    }

    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
        let allocate = || {
            let memory = legacy::Allocation::new(&self.0, length(size)?)?;
            clear(&self.0, memory.ptr(), memory.size())?;
            Ok(LegacyAllocation { handle: memory.export(), memory })
        };
        Ok(Arc::new(allocate().map_err(MemoryError::while_doing("allocate", size, MemoryKind::Legacy))?))
    }
}

impl Importer for Legacy {
    fn kind(&self) -> MemoryKind {
        MemoryKind::Legacy
    }

    fn import(&self, size: u64, handle: &[u8], _fd: Option<OwnedFd>) -> Result<Arc<dyn Import>, MemoryError> {
        let import = || {
            let handle = handle.try_into().map_err(|_| "its handle has not 64 bytes")?;
            Ok(legacy::Import::new(&self.0, handle)?)
        };
        let import = import().map_err(MemoryError::while_doing("import", size, MemoryKind::Legacy))?;
        Ok(Arc::new(LegacyImport(import)))
    }
}

impl Allocation for LegacyAllocation {
    fn address(&self) -> Address {
        Address::Device(self.memory.ptr())
    }

    fn size(&self) -> u64 {
        self.memory.size() as u64
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &self.handle, fd: None }
    }
}

impl Import for LegacyImport {
    fn address(&self) -> Address {
        Address::Device(self.0.ptr())
    }
}
