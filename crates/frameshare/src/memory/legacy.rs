// SPDX-License-Identifier: MIT OR Apache-2.0

//! GPU memory by CUDA's first sharing interface: 64 bytes name a whole block of 2 MiB or a
//! multiple.
//!
//! Imports are closed before the exporter frees, one context of a process may import the memory of
//! an exporter's device, and a process cannot import its own allocations (CUDA driver API,
//! cuIpcOpenMemHandle).

use super::{
    Address, Allocation, Allocator, Handle, Import, Importer, MemoryError, MemoryFault, Operation, clear,
    import_again, length,
};
use crate::{gpu::DropWhenIdle, sys::PerProcess};
use frameshare_cuda::{context::Context, memory::legacy};
use frameshare_protocol::MemoryKind;
use std::{
    collections::BTreeMap,
    os::fd::BorrowedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Allocates and imports such memory in a context.
#[derive(Clone, Debug)]
pub struct Legacy(pub(super) Arc<Context>);

#[derive(Debug)]
struct LegacyAllocation {
    _memory: DropWhenIdle<legacy::Allocation>,
    start: u64,
    size: u64,
    handle: legacy::Handle,
}

#[derive(Debug)]
struct LegacyImport {
    // Dropped before its count.
    memory: legacy::Import,
    _open: Open,
}

/// Counts an import among those of its context.
#[derive(Debug)]
struct Open {
    context: usize,
}

/// Number of imports of each context, by this copy of the engine.
fn open() -> MutexGuard<'static, BTreeMap<usize, usize>> {
    static OPEN: PerProcess<Mutex<BTreeMap<usize, usize>>> = PerProcess::new(Mutex::default);
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    fn new(context: &Context) -> Self {
        let context = context.as_raw() as usize;
        *open().entry(context).or_default() += 1;
        Self { context }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut open = open();
        if let Some(count) = open.get_mut(&self.context) {
            *count -= 1;
        }
        open.retain(|_, count| *count > 0);
    }
}

/// Returns whether another context has imports. Those of other copies of the engine in the process
/// are not known, and CUDA's own error is reported then.
fn others_are_open(context: &Context) -> bool {
    open().keys().any(|other| *other != context.as_raw() as usize)
}

/// Explains the driver's refusal of an import: it does not report that another context has the
/// memory open.
fn explain(error: frameshare_cuda::Error, context: &Context) -> MemoryFault {
    if others_are_open(context) { MemoryFault::OpenElsewhere(error) } else { error.into() }
}

impl Allocator for Legacy {
    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
        let allocate = || {
            let memory = legacy::Allocation::new(&self.0, length(size)?)?;
            clear(&self.0, memory.ptr(), memory.size())?;
            let (start, size) = (memory.ptr(), memory.size() as u64);
            let handle = memory.export();
            Ok(LegacyAllocation { _memory: DropWhenIdle::new(&self.0, memory), start, size, handle })
        };
        Ok(Arc::new(allocate().map_err(MemoryError::of(Operation::Allocate, size, MemoryKind::Legacy))?))
    }
}

impl Importer for Legacy {
    fn import(
        &self,
        size: u64,
        handle: &[u8],
        _fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError> {
        let import = || {
            let handle = handle.try_into().map_err(|_| MemoryFault::HandleLength)?;
            let import = || legacy::Import::new(&self.0, handle);
            import_again(import, |_| others_are_open(&self.0)).map_err(|error| explain(error, &self.0))
        };
        let import = import().map_err(MemoryError::of(Operation::Import, size, MemoryKind::Legacy))?;
        Ok(Arc::new(LegacyImport { memory: import, _open: Open::new(&self.0) }))
    }
}

impl Allocation for LegacyAllocation {
    fn address(&self) -> Address {
        Address::Device(self.start)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn handle(&self) -> Handle<'_> {
        Handle { bytes: &self.handle, fd: None }
    }
}

impl Import for LegacyImport {
    fn address(&self) -> Address {
        Address::Device(self.memory.ptr())
    }
}
