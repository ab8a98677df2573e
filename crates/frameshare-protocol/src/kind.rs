//! The kinds of memory, fences and delivery that two sides agree on.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Where the frames of a generation lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryKind {
    /// A sealed memfd that readers map read-only.
    Host,
    /// A CUDA allocation shared by `cuIpcGetMemHandle`.
    Legacy,
    /// A CUDA virtual-memory allocation shared by a POSIX file descriptor.
    Vmm,
    /// An allocation of a CUDA stream-ordered pool, shared by the pool's descriptor and a pointer export.
    Pool,
}

/// What orders a reader's work on a frame after the exporter's, and the exporter's next write after the reader's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FenceKind {
    /// None is needed: a host frame is complete when it is published, and unused when it is released.
    None,
    /// A CUDA IPC event each way.
    Event,
    /// 64-bit words in shared memory that CUDA streams write and wait on.
    Timeline,
}

/// What happens to frames that a reader has no credit for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Policy {
    /// The reader loses its oldest untaken frame, and the exporter goes on.
    #[default]
    Latest,
    /// The exporter waits for the reader, no longer than it allows readers to hold it back.
    Lossless,
}

macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $word:literal),+) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(match self { $(Self::$variant => $word),+ })
            }
        }
        impl FromStr for $type {
            type Err = String;
            fn from_str(word: &str) -> Result<Self, String> {
                match word {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!(concat!("{:?} is no ", $what, ": use one of", $(" ", $word),+), word)),
                }
            }
        }
    };
}
words!(MemoryKind, "kind of memory", Host = "host", Legacy = "legacy", Vmm = "vmm", Pool = "pool");
words!(FenceKind, "kind of fence", None = "none", Event = "event", Timeline = "timeline");
words!(Policy, "policy", Latest = "latest", Lossless = "lossless");
