//! How often frames had to be copied, and why.

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
}

impl Reason {
    const ALL: [Self; 4] = [Self::ForeignMemory, Self::OtherStream, Self::NoFreeSlot, Self::SeveralMemories];

    fn name(self) -> &'static str {
        match self {
            Self::ForeignMemory => "foreign-memory",
            Self::OtherStream => "other-stream",
            Self::NoFreeSlot => "no-free-slot",
            Self::SeveralMemories => "several-memories",
        }
    }
}

/// Counted on the streaming thread, read from any.
#[derive(Default)]
pub(super) struct Copies {
    by_reason: [AtomicU64; Reason::ALL.len()],
    bytes: AtomicU64,
}

impl Copies {
    /// Counts one copy; true where it is the first for its reason.
    pub(super) fn count(&self, reason: Reason, bytes: u64) -> bool {
        self.bytes.fetch_add(bytes, Relaxed);
        self.by_reason[reason as usize].fetch_add(1, Relaxed) == 0
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
