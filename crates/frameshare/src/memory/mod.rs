// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory that several processes can reach: allocated by an exporter, imported by readers.
//!
//! One trait for each side, and one implementation for each [`MemoryKind`]. Holders and lifetimes
//! of slots are the same for all kinds, and are managed by the exporter and the reader.

pub(crate) mod accounts;
pub mod adopted;
mod copy;
pub mod dma_buf;
mod error;
pub mod host;
pub mod legacy;
pub mod pool;
pub(crate) mod same_process;
pub mod select;
pub mod vmm;

pub(crate) use accounts::{Account, Accounts, Purpose};
pub(crate) use copy::copy_out;
pub use error::{MemoryError, MemoryFault, Operation};

use crate::{
    gpu,
    sys::{Label, PerProcess},
};
use frameshare_cuda::context::Context;
use frameshare_protocol::MemoryKind;
use std::{
    fmt::Debug,
    hash::{BuildHasher as _, RandomState},
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

/// Address of memory in the present process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address that the CPU can use.
    Host(NonNull<u8>),
    /// A CUDA device pointer.
    Device(u64),
}

/// The data that an importer needs.
#[derive(Clone, Debug)]
pub struct Handle<'a> {
    /// Bytes that name the memory, if its kind has some.
    pub bytes: &'a [u8],
    /// A descriptor of the memory, if its kind has one; the receiver gets a duplicate.
    pub fd: Option<BorrowedFd<'a>>,
}

/// Memory that other processes can import; dropping it frees it.
pub trait Allocation: Debug + Send + Sync {
    /// Its address in the exporter.
    fn address(&self) -> Address;
    /// Size in bytes, at least the requested one.
    fn size(&self) -> u64;
    /// The data that an importer needs.
    fn handle(&self) -> Handle<'_>;
    /// The dma-buf, if it is one.
    fn dma_buf(&self) -> Option<&dma_buf::DmaBuf> {
        None
    }
    /// The memory file, if it is host memory of the exporter.
    fn file(&self) -> Option<&Arc<host::HostFile>> {
        None
    }
}

/// Imported memory of another process; dropping it ends the import. The owner ensures that no GPU
/// work uses it then (see [`DropWhenIdle`](crate::DropWhenIdle)).
pub trait Import: Debug + Send + Sync {
    /// Its address in the reader.
    fn address(&self) -> Address;
    /// The dma-buf, if it is one.
    fn dma_buf(&self) -> Option<&dma_buf::DmaBuf> {
        None
    }
}

/// Allocates the slots of one generation.
pub trait Allocator: Debug + Send + Sync {
    /// A descriptor that importers need once for all slots, if the kind has one.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Allocates at least `size` bytes, all zero.
    ///
    /// # Errors
    /// [`MemoryError`] with the system's error.
    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError>;
}

/// Imports the slots of one generation.
pub trait Importer: Debug + Send + Sync {
    /// Imports `size` bytes by the handle of the allocation. Checks all its arguments.
    ///
    /// # Errors
    /// [`MemoryError`] for an invalid handle, or with the system's error.
    fn import(
        &self,
        size: u64,
        handle: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError>;
}

/// Returns an allocator of a kind, for the slots of one generation. All kinds but `host` need the
/// context that frames are written in.
///
/// # Errors
/// [`MemoryError`] without the context, or if the driver fails.
pub fn allocator(
    kind: MemoryKind,
    gpu: Option<&Arc<Context>>,
    label: &Label,
) -> Result<Arc<dyn Allocator>, MemoryError> {
    let failed = MemoryError::of(Operation::Allocate, None, kind);
    Ok(match (kind, gpu) {
        (MemoryKind::Host, _) => Arc::new(host::Host(label.clone())),
        (MemoryKind::Legacy | MemoryKind::Vmm | MemoryKind::Pool, None) => {
            return Err(failed(MemoryFault::NoContext));
        }
        (MemoryKind::Legacy, Some(gpu)) => Arc::new(legacy::Legacy(gpu.clone())),
        (MemoryKind::Vmm, Some(gpu)) => Arc::new(vmm::Vmm(gpu.clone())),
        (MemoryKind::Pool, Some(gpu)) => {
            Arc::new(pool::PoolAllocator::new(gpu).map_err(|error| failed(error.into()))?)
        }
        _ => return Err(failed(MemoryFault::UnknownKind)),
    })
}

/// Returns an importer of a kind, for the slots of one generation, with the descriptor for all of
/// them. All kinds but `host` and `dmabuf` need the context that frames are read in.
///
/// # Errors
/// [`MemoryError`] without the context or the descriptor, or if the driver fails.
pub fn importer(
    kind: MemoryKind,
    gpu: Option<&Arc<Context>>,
    fd: Option<BorrowedFd<'_>>,
) -> Result<Arc<dyn Importer>, MemoryError> {
    let failed = MemoryError::of(Operation::Import, None, kind);
    Ok(match (kind, gpu) {
        (MemoryKind::Host, _) => Arc::new(host::Host::default()),
        (MemoryKind::DmaBuf, _) => Arc::new(dma_buf::DmaBufImporter),
        (MemoryKind::Legacy, Some(gpu)) => Arc::new(legacy::Legacy(gpu.clone())),
        (MemoryKind::Vmm, Some(gpu)) => Arc::new(vmm::Vmm(gpu.clone())),
        (MemoryKind::Pool, Some(gpu)) => {
            let fd = fd.ok_or_else(|| failed(MemoryFault::NoDescriptor))?;
            Arc::new(pool::PoolImporter::new(gpu, fd).map_err(|error| failed(error.into()))?)
        }
        _ => return Err(failed(MemoryFault::NotOffered)),
    })
}

/// Returns whether every import has to be closed before the exporter may free: otherwise the
/// behavior is undefined (CUDA driver API, cuIpcCloseMemHandle and cuMemPoolImportPointer).
pub fn frees_imports_first(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Legacy | MemoryKind::Pool)
}

/// Returns a number that tells a CUDA context from others of this process, and does not reveal its
/// address.
pub(crate) fn context_number(context: &Arc<Context>) -> u64 {
    static KEYS: PerProcess<RandomState> = PerProcess::new(RandomState::new);
    // 0 means none.
    KEYS.hash_one(context.as_raw() as usize).max(1)
}

/// Converts a size to this machine's type.
fn length(size: u64) -> Result<usize, MemoryFault> {
    usize::try_from(size).map_err(|_| MemoryFault::TooLarge)
}

/// Imports; retries once if an earlier import of this process conflicts, which may be waiting for
/// its deferred drop (see [`Import`]). Behind a stream that never completes it stays.
fn import_again<T, E>(import: impl Fn() -> Result<T, E>, is_in_the_way: impl Fn(&E) -> bool) -> Result<T, E> {
    const PATIENCE: Duration = Duration::from_secs(2);
    match import() {
        Err(error) if is_in_the_way(&error) => {
            gpu::wait_for_deferred_drops(PATIENCE);
            import()
        }
        other => other,
    }
}

/// Sets fresh GPU memory to zero, so that no reader sees its former content. Waits for the GPU:
/// slots are allocated once and reused.
fn clear(gpu: &Arc<Context>, start: u64, size: usize) -> frameshare_cuda::Result<()> {
    let stream = frameshare_cuda::stream::Stream::new(gpu)?;
    // SAFETY: the callers pass an allocation that they have just made and hold until this returns.
    #[expect(unsafe_code, reason = "filling memory by its address")]
    unsafe {
        stream.fill(start, 0, size)?;
    }
    stream.synchronize()
}
