//! How frames came to be where they were published, and how often they had to be copied, and why.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a frame could not be shared where it lay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// Upstream wrote it to memory of its own.
    ForeignMemory,
    /// It lies in a slot of another stream.
    OtherStream,
    /// Upstream asked our pool when there was no slot to spare.
    NoFreeSlot,
    /// It lies in several memories; a frame is in one slot.
    SeveralMemories,
    /// It lies in host memory, and frames are shared in the GPU's.
    HostMemory,
    /// It lies in GPU memory of another context.
    OtherContext,
    /// Copying was asked for.
    Asked,
    /// A decoder's surface, and a reader could not read it in place.
    ReaderCannot,
    /// A decoder's surface, and as many are held as were asked for.
    TooManyHeld,
    /// A decoder's surface that CUDA shares by no handle.
    NotShareable,
}

/// How a frame came to be where it was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Upstream wrote it to a slot of ours.
    Pool,
    /// It is shared where a decoder wrote it.
    InPlace,
    /// It was copied to a slot.
    Copied,
    /// It was copied from host to GPU memory.
    Uploaded,
}

impl Path {
    const ALL: [Self; 4] = [Self::Pool, Self::InPlace, Self::Copied, Self::Uploaded];

    fn name(self) -> &'static str {
        match self {
            Self::Pool => "pool",
            Self::InPlace => "in-place",
            Self::Copied => "copied",
            Self::Uploaded => "uploaded",
        }
    }
}

impl Reason {
    const ALL: [Self; 10] = [
        Self::ForeignMemory,
        Self::OtherStream,
        Self::NoFreeSlot,
        Self::SeveralMemories,
        Self::HostMemory,
        Self::OtherContext,
        Self::Asked,
        Self::ReaderCannot,
        Self::TooManyHeld,
        Self::NotShareable,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ForeignMemory => "foreign-memory",
            Self::OtherStream => "other-stream",
            Self::NoFreeSlot => "no-free-slot",
            Self::SeveralMemories => "several-memories",
            Self::HostMemory => "host-memory",
            Self::OtherContext => "other-context",
            Self::Asked => "export-copy",
            Self::ReaderCannot => "reader-cannot",
            Self::TooManyHeld => "surfaces-held",
            Self::NotShareable => "no-handle",
        }
    }
}

/// Counted on the streaming thread, read from any.
#[derive(Default)]
pub(super) struct Copies {
    by_reason: [AtomicU64; Reason::ALL.len()],
    bytes: AtomicU64,
    by_path: [AtomicU64; Path::ALL.len()],
}

impl Copies {
    /// Counts one copy; true where it is the first for its reason.
    pub(super) fn count(&self, reason: Reason, bytes: u64) -> bool {
        self.bytes.fetch_add(bytes, Relaxed);
        self.by_reason[reason as usize].fetch_add(1, Relaxed) == 0
    }

    /// Counts a frame that was published.
    pub(super) fn published(&self, path: Path) {
        self.by_path[path as usize].fetch_add(1, Relaxed);
    }

    /// Name of each path, and how many frames took it.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Path::ALL.into_iter().map(|path| (path.name(), self.by_path[path as usize].load(Relaxed)))
    }

    pub(super) fn total(&self) -> u64 {
        self.by_reason.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Name and count of each reason.
    pub(super) fn reasons(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Reason::ALL.into_iter().map(|reason| (reason.name(), self.by_reason[reason as usize].load(Relaxed)))
    }
}
