// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory of a stream-ordered pool: one descriptor for the pool, 64 bytes for each allocation.
//!
//! CUDA requires a strict order of freeing: the reader's free, the fence behind it, the exporter's
//! check of that fence, the exporter's free. Dropping an import frees it at once, since no work
//! uses it any more; the acknowledgement that the reader sends afterwards is the fence that the
//! exporter checks.

use super::{
    Address, Allocation, Allocator, Handle, Import, Importer, MemoryError, MemoryFault, Operation, clear,
    import_again, length,
};
use crate::gpu::DropWhenIdle;
use frameshare_cuda::{Error, context::Context, memory::pool, stream::Stream};
use frameshare_protocol::MemoryKind;
use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// Allocates from a pool of its own, which is destroyed with its last allocation.
#[derive(Debug)]
pub struct PoolAllocator {
    pool: Arc<pool::Pool>,
    stream: Stream,
    gpu: Arc<Context>,
}

/// Imports from another process's pool.
#[derive(Debug)]
pub struct PoolImporter(Arc<pool::ImportedPool>);

#[derive(Debug)]
struct PoolAllocation {
    /// Measured on an H200, driver 580: freeing memory of a pool does not wait for work that is
    /// queued on it.
    _memory: DropWhenIdle<pool::Allocation>,
    start: u64,
    size: u64,
    token: pool::Token,
}

#[derive(Debug)]
struct PoolImport(pool::Import);

impl PoolAllocator {
    pub(super) fn new(gpu: &Arc<Context>) -> frameshare_cuda::Result<Self> {
        Ok(Self { pool: pool::Pool::new(gpu)?, stream: Stream::new(gpu)?, gpu: gpu.clone() })
    }
}

impl PoolImporter {
    pub(super) fn new(gpu: &Arc<Context>, fd: BorrowedFd<'_>) -> frameshare_cuda::Result<Self> {
        Ok(Self(pool::ImportedPool::new(gpu, fd)?))
    }
}

impl Allocator for PoolAllocator {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.pool.as_fd())
    }

    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
        let allocate = || {
            let memory = self.pool.allocate(length(size)?, &self.stream)?;
            // The allocation is made in the stream's order; later users need not wait for it.
            self.stream.synchronize()?;
            clear(&self.gpu, memory.ptr(), memory.size())?;
            let (start, size) = (memory.ptr(), memory.size() as u64);
            let token = memory.export()?;
            Ok(PoolAllocation { _memory: DropWhenIdle::new(&self.gpu, memory), start, size, token })
        };
        Ok(Arc::new(allocate().map_err(MemoryError::of(Operation::Allocate, size, MemoryKind::Pool))?))
    }
}

impl Importer for PoolImporter {
    fn import(
        &self,
        size: u64,
        handle: &[u8],
        _fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError> {
        let import = || {
            let token = handle.try_into().map_err(|_| MemoryFault::HandleLength)?;
            let is_imported = |error: &Error| matches!(error, Error::Refused(_));
            Ok(import_again(|| self.0.import(token), is_imported)?)
        };
        let memory = import().map_err(MemoryError::of(Operation::Import, size, MemoryKind::Pool))?;
        Ok(Arc::new(PoolImport(memory)))
    }
}

impl Allocation for PoolAllocation {
    fn address(&self) -> Address {
        Address::Device(self.start)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &self.token, fd: None }
    }
}

impl Import for PoolImport {
    fn address(&self) -> Address {
        Address::Device(self.0.ptr())
    }
}
