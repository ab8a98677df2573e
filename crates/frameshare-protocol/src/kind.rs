// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory kinds, fence kinds and delivery policies, negotiated between exporter and reader.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Memory kind of the frames of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum MemoryKind {
    /// A sealed memfd that readers map read-only.
    Host,
    /// A CUDA allocation shared by legacy IPC handle (`cuIpcGetMemHandle`).
    Legacy,
    /// A CUDA virtual-memory allocation shared by file descriptor.
    Vmm,
    /// An allocation from a CUDA stream-ordered pool, shared by the pool's descriptor and a pointer
    /// export.
    Pool,
    /// A dma-buf of a third party, such as a camera's or a GPU's driver, shared by file descriptor.
    DmaBuf,
}

impl MemoryKind {
    /// Returns whether it is memory of a GPU that CUDA imports.
    pub fn is_gpu(self) -> bool {
        matches!(self, Self::Legacy | Self::Vmm | Self::Pool)
    }
}

/// Fence kind: orders a reader's GPU work on a frame after the exporter's, and the exporter's next
/// write of the slot after the reader's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FenceKind {
    /// No fence: a host frame is complete when published, and unused when released.
    None,
    /// CUDA IPC events: one for ready, one for release.
    Event,
    /// Timeline values: 64-bit words in shared memory that CUDA streams write and wait for.
    Timeline,
}

/// Delivery policy for a reader without credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Policy {
    /// The reader loses its oldest undelivered frame; the exporter continues.
    #[default]
    Latest,
    /// The exporter blocks until the reader releases a frame, for at most its configured timeout.
    Lossless,
}

/// A word that names no memory kind, fence kind or policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid {what} {word:?}: use one of {}", .valid.join(" "))]
#[non_exhaustive]
pub struct InvalidKind {
    /// The expected content: `memory kind`, `fence kind` or `policy`.
    pub what: &'static str,
    /// The word.
    pub word: String,
    /// All valid words.
    pub valid: &'static [&'static str],
}

macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $word:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $word),+ })
            }
        }
        impl FromStr for $type {
            type Err = InvalidKind;
            fn from_str(word: &str) -> Result<Self, InvalidKind> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(InvalidKind { what: $what, word: word.to_owned(), valid: &[$($word),+] }),
                }
            }
        }
    };
}
words!(
    MemoryKind,
    "memory kind",
    Host = "host",
    Legacy = "legacy",
    Vmm = "vmm",
    Pool = "pool",
    DmaBuf = "dmabuf"
);
words!(FenceKind, "fence kind", None = "none", Event = "event", Timeline = "timeline");
words!(Policy, "policy", Latest = "latest", Lossless = "lossless");
