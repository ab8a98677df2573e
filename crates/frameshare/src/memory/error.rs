// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of memory: the failed operation, and its cause.

use frameshare_protocol::MemoryKind;
use std::{fmt, io};

/// An error of allocating, importing or sharing memory.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation} {}{kind} memory: {cause}", bytes_of(*.size))]
#[non_exhaustive]
pub struct MemoryError {
    /// The failed operation.
    pub operation: Operation,
    /// Size in bytes; `None` if the error concerns the kind as such.
    pub size: Option<u64>,
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The cause.
    pub cause: MemoryFault,
}

/// An operation on memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// The exporter allocates it.
    Allocate,
    /// A reader imports it.
    Import,
    /// The exporter shares memory of a third party.
    Share,
}

/// The cause of a [`MemoryError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryFault {
    /// A system call failed, or found another size or other seals than agreed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The CUDA driver failed, or refused.
    #[error(transparent)]
    Driver(#[from] frameshare_cuda::Error),
    /// The configuration names no CUDA context.
    #[error("the configuration names no CUDA context")]
    NoContext,
    /// The reader did not offer this kind.
    #[error("this reader did not offer this kind")]
    NotOffered,
    /// This version has no such kind.
    #[error("this version has no such kind")]
    UnknownKind,
    /// The message came without the descriptor of the memory, or of its pool.
    #[error("the message lacks its descriptor")]
    NoDescriptor,
    /// The handle does not have the length of the kind.
    #[error("the handle is not 64 bytes long")]
    HandleLength,
    /// The size exceeds the address space.
    #[error("the size exceeds the address space")]
    TooLarge,
    /// The exporter, in this process, has freed it.
    #[error("the exporter has freed it")]
    Freed,
    /// The exporter, in this process, allocated it in another CUDA context.
    #[error("within one process it can be read in the exporter's CUDA context only: use vmm memory")]
    OtherContext,
    /// Another CUDA context of this process seems to have it open, which the driver does not
    /// report.
    #[error(
        "one context of a process can open such memory of an exporter, and another CUDA context of this process seems to have it open: share that context, or select vmm memory in the exporter ({0})"
    )]
    OpenElsewhere(#[source] frameshare_cuda::Error),
}

impl MemoryError {
    /// An error of an operation on `size` bytes, or on a kind as such.
    pub fn new(
        operation: Operation,
        size: impl Into<Option<u64>>,
        kind: MemoryKind,
        cause: impl Into<MemoryFault>,
    ) -> Self {
        Self { operation, size: size.into(), kind, cause: cause.into() }
    }

    /// The system's error, if that is the cause.
    pub(crate) fn system(&self) -> Option<&io::Error> {
        match &self.cause {
            MemoryFault::System(error) => Some(error),
            _ => None,
        }
    }

    /// Wraps causes in errors.
    pub(super) fn of(
        operation: Operation,
        size: impl Into<Option<u64>>,
        kind: MemoryKind,
    ) -> impl Fn(MemoryFault) -> Self {
        let size = size.into();
        move |cause| Self { operation, size, kind, cause }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Allocate => "allocate",
            Self::Import => "import",
            Self::Share => "share",
        })
    }
}

fn bytes_of(size: Option<u64>) -> String {
    size.map(|size| format!("{size} bytes of ")).unwrap_or_default()
}
