//! Memory that several processes can reach: allocated by an exporter, imported by readers.
//!
//! One trait for each side, and one implementation a [`MemoryKind`]. What is the same for all kinds - who may hold
//! which slot, and for how long - is the exporter's and the reader's business.

pub mod choice;
pub mod foreign;
pub mod host;
pub mod legacy;
pub(crate) mod local;
pub mod pool;
pub mod vmm;

use crate::idle;
use frameshare_cuda::context::Context;
use frameshare_protocol::MemoryKind;
use once_cell::sync::Lazy;
use std::{
    fmt::Debug,
    hash::{BuildHasher as _, RandomState},
    os::fd::BorrowedFd,
    ptr::NonNull,
    sync::Arc,
    time::Duration,
};

/// Where memory lies, as the process that asks sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address that the CPU can use.
    Host(NonNull<u8>),
    /// A CUDA device pointer.
    Device(u64),
}

/// What an importer needs.
#[derive(Clone, Debug)]
pub struct Handle<'a> {
    /// Bytes that name the memory, where its kind has such.
    pub bytes: &'a [u8],
    /// A descriptor of the memory, where its kind has one; the receiver gets a duplicate.
    pub fd: Option<BorrowedFd<'a>>,
}

/// Memory that others can import; freed when it is dropped.
pub trait Allocation: Debug + Send + Sync {
    /// Where it lies in the exporter.
    fn address(&self) -> Address;
    /// Bytes, at least as many as were asked for.
    fn size(&self) -> u64;
    /// What an importer needs.
    fn handle(&self) -> Handle<'_>;
}

/// Memory of another process that was imported; given up when it is dropped. No GPU work may use it any more then, which is
/// its owner's business (see [`WhenIdle`](crate::WhenIdle)).
pub trait Import: Debug + Send + Sync {
    /// Where it lies in the reader.
    fn address(&self) -> Address;
}

/// Allocates the slots of one generation.
pub trait Allocator: Debug + Send + Sync {
    /// A descriptor that importers need once for all slots, where the kind has one.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
    /// Allocates at least `size` bytes, all zero.
    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError>;
}

/// Imports the slots of one generation.
pub trait Importer: Debug + Send + Sync {
    /// Imports `size` bytes by the handle that the allocation gave. Trusts nothing that it is handed.
    fn import(
        &self,
        size: u64,
        handle: &[u8],
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Import>, MemoryError>;
}

/// An allocator of a kind, for the slots of one generation. All kinds but `host` need the context that frames are
/// written in.
pub fn allocator(kind: MemoryKind, gpu: Option<&Arc<Context>>) -> Result<Arc<dyn Allocator>, MemoryError> {
    let failed = MemoryError::while_doing("allocate", None, kind);
    Ok(match (kind, gpu) {
        (MemoryKind::Host, _) => Arc::new(host::Host),
        (_, None) => return Err(failed("no GPU was given to allocate it on".into())),
        (MemoryKind::Legacy, Some(gpu)) => Arc::new(legacy::Legacy(gpu.clone())),
        (MemoryKind::Vmm, Some(gpu)) => Arc::new(vmm::Vmm(gpu.clone())),
        (MemoryKind::Pool, Some(gpu)) => {
            Arc::new(pool::PoolAllocator::new(gpu).map_err(|error| failed(error.into()))?)
        }
    })
}

/// An importer of a kind, for the slots of one generation, with the descriptor that came for all of them. All kinds
/// but `host` need the context that frames are read in.
pub fn importer(
    kind: MemoryKind,
    gpu: Option<&Arc<Context>>,
    fd: Option<BorrowedFd<'_>>,
) -> Result<Arc<dyn Importer>, MemoryError> {
    let failed = MemoryError::while_doing("import", None, kind);
    Ok(match (kind, gpu) {
        (MemoryKind::Host, _) => Arc::new(host::Host),
        (_, None) => return Err(failed("this reader did not offer to read it".into())),
        (MemoryKind::Legacy, Some(gpu)) => Arc::new(legacy::Legacy(gpu.clone())),
        (MemoryKind::Vmm, Some(gpu)) => Arc::new(vmm::Vmm(gpu.clone())),
        (MemoryKind::Pool, Some(gpu)) => {
            let fd = fd.ok_or_else(|| failed("the descriptor of its pool did not come".into()))?;
            Arc::new(pool::PoolImporter::new(gpu, fd).map_err(|error| failed(error.into()))?)
        }
    })
}

/// Whether every import has to be given up before the exporter may free: CUDA leaves undefined what happens otherwise
/// (CUDA driver API, cuIpcCloseMemHandle and cuMemPoolImportPointer).
pub fn frees_imports_first(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Legacy | MemoryKind::Pool)
}

/// Memory that could not be allocated, imported or shared.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {}{kind} memory: {cause}", bytes_of(*.size))]
pub struct MemoryError {
    /// `allocate`, `import` or `share`.
    pub doing: &'static str,
    /// Bytes; `None` where it is about the kind as such.
    pub size: Option<u64>,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// What the system said.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}

impl MemoryError {
    /// Makes errors of causes.
    fn while_doing(
        doing: &'static str,
        size: impl Into<Option<u64>>,
        kind: MemoryKind,
    ) -> impl Fn(Box<dyn std::error::Error + Send + Sync>) -> Self {
        let size = size.into();
        move |cause| Self { doing, size, kind, cause }
    }
}

fn bytes_of(size: Option<u64>) -> String {
    size.map(|size| format!("{size} bytes of ")).unwrap_or_default()
}

/// A number that tells a CUDA context from others of this process, and says nothing of where it lies.
pub(crate) fn context_number(context: &Arc<Context>) -> u64 {
    static KEYS: Lazy<RandomState> = Lazy::new(RandomState::new);
    // 0 stands for none.
    KEYS.hash_one(context.as_raw() as usize).max(1)
}

/// A size as this machine counts.
fn length(size: u64) -> Result<usize, Box<dyn std::error::Error + Send + Sync>> {
    usize::try_from(size).map_err(|_| "that is more than there are addresses".into())
}

/// Imports, and once more where what this process has imported before is in the way: that may only have to be given up yet
/// (see [`Import`]). Behind a stream that is stuck it never is.
fn import_again<T, E>(import: impl Fn() -> Result<T, E>, is_in_the_way: impl Fn(&E) -> bool) -> Result<T, E> {
    const PATIENCE: Duration = Duration::from_secs(2);
    match import() {
        Err(error) if is_in_the_way(&error) => {
            idle::wait_until_given_up(PATIENCE);
            import()
        }
        other => other,
    }
}

/// Sets fresh GPU memory to zero, so that no reader sees what was in it before. Waits for the GPU: slots are
/// allocated once and used again.
fn clear(gpu: &Arc<Context>, start: u64, size: usize) -> frameshare_cuda::Result<()> {
    let stream = frameshare_cuda::stream::Stream::new(gpu)?;
    // SAFETY: the callers pass an allocation that they have just made and hold until this returns.
    #[expect(unsafe_code, reason = "filling memory by its address")]
    unsafe {
        stream.fill(start, 0, size)?;
    }
    stream.synchronize()
}
