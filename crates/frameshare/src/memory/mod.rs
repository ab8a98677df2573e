//! Memory that several processes can reach: allocated by an exporter, imported by readers.
//!
//! One trait each, and one implementation a [`MemoryKind`]. What is the same for all kinds - who may hold which
//! slot, and for how long - is the exporter's and the reader's business.

pub mod host;

use frameshare_protocol::MemoryKind;
use std::{
    fmt::Debug,
    os::fd::{BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::Arc,
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

/// Memory that was allocated to be exported; freed when it is dropped.
pub trait Allocation: Debug + Send + Sync {
    /// Where it lies in the exporter.
    fn address(&self) -> Address;
    /// Bytes, at least as many as were asked for.
    fn size(&self) -> u64;
    /// What an importer needs.
    fn handle(&self) -> Handle<'_>;
}

/// Memory of another process that was imported; given up when it is dropped.
pub trait Import: Debug + Send + Sync {
    /// Where it lies in the reader.
    fn address(&self) -> Address;
}

/// Allocates memory of one kind.
pub trait Allocator: Debug + Send + Sync {
    /// The kind.
    fn kind(&self) -> MemoryKind;
    /// Allocates at least `size` bytes, all zero.
    fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError>;
}

/// Imports memory of one kind.
pub trait Importer: Debug + Send + Sync {
    /// The kind.
    fn kind(&self) -> MemoryKind;
    /// Imports `size` bytes by the handle that the allocation gave. Trusts nothing that it is handed.
    fn import(&self, size: u64, handle: &[u8], fd: Option<OwnedFd>) -> Result<Arc<dyn Import>, MemoryError>;
}

/// Memory that could not be allocated or imported.
#[derive(Debug, thiserror::Error)]
#[error("cannot {doing} {size} bytes of {kind} memory: {cause}")]
pub struct MemoryError {
    /// `allocate` or `import`.
    pub doing: &'static str,
    /// Bytes.
    pub size: u64,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// What the system said.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}
