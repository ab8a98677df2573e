// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statistics of the paths by which frames were published, and of the reasons for copies.

use frameshare::{exporter::Exporter, observer::CopyCount};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// The reason why a frame could not be shared in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CopyReason {
    /// Upstream wrote it to its own memory.
    ForeignMemory,
    /// It is in a slot of another stream.
    OtherStream,
    /// Upstream acquired a buffer from the pool when no slot was free.
    NoFreeSlot,
    /// It is in several memories; a frame is in one slot.
    SeveralMemories,
    /// It is in host memory, and frames are shared in GPU memory.
    HostMemory,
    /// Upstream padded its rows, and readers want the default layout.
    PaddedRows,
    /// It is in GPU memory of another context.
    OtherContext,
    /// The property `export` asks for copies.
    Asked,
    /// A decoder's surface or a dma-buf, and a reader could not read it in place.
    ReaderCannot,
    /// A decoder's surface or a dma-buf, and it would wait for a slow reader.
    ReaderWaits,
    /// A decoder's surface or a dma-buf of a slow stream, kept for readers that join later.
    History,
    /// A decoder's surface or a dma-buf, and the sink holds as many as it asked for.
    TooManyHeld,
    /// A decoder's surface or a dma-buf that cannot be shared with other processes.
    NotShareable,
    /// A decoder's surface, which the decoder may clear soon.
    DecoderChanges,
}

/// The path by which a frame was published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Path {
    /// Upstream wrote it to a slot.
    Pool,
    /// A decoder's surface is shared in place.
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

impl CopyReason {
    const ALL: [Self; 14] = [
        Self::ForeignMemory,
        Self::OtherStream,
        Self::NoFreeSlot,
        Self::SeveralMemories,
        Self::HostMemory,
        Self::PaddedRows,
        Self::OtherContext,
        Self::Asked,
        Self::ReaderCannot,
        Self::ReaderWaits,
        Self::History,
        Self::TooManyHeld,
        Self::NotShareable,
        Self::DecoderChanges,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ForeignMemory => "foreign-memory",
            Self::OtherStream => "other-stream",
            Self::NoFreeSlot => "no-free-slot",
            Self::SeveralMemories => "several-memories",
            Self::HostMemory => "host-memory",
            Self::PaddedRows => "padded-rows",
            Self::OtherContext => "other-context",
            Self::Asked => "export-copy",
            Self::ReaderCannot => "reader-cannot",
            Self::ReaderWaits => "reader-waits",
            Self::History => "history",
            Self::TooManyHeld => "surfaces-held",
            Self::NotShareable => "no-handle",
            Self::DecoderChanges => "decoder-changes",
        }
    }

    /// Returns the reason as the end of a sentence, for a warning; none for copies that a property
    /// asks for.
    fn warning(self) -> Option<&'static str> {
        Some(match self {
            Self::Asked | Self::HostMemory | Self::History | Self::DecoderChanges => return None,
            Self::ForeignMemory => {
                "upstream writes them to memory of its own, instead of that which this element offers"
            }
            Self::OtherStream => "they are in the memory of another framesharesink",
            Self::NoFreeSlot => {
                "no slot was free when upstream needed one; raise max-slots, or let readers hold fewer frames"
            }
            Self::SeveralMemories => "upstream spreads each of them over several memories",
            Self::PaddedRows => {
                "upstream pads their rows, and readers that do not announce GstVideoMeta would each copy them"
            }
            Self::OtherContext => {
                "they are in GPU memory of another CUDA context; let the elements share one (cuda-device-id)"
            }
            Self::ReaderCannot => "a reader cannot read upstream's surfaces or dma-bufs in place",
            Self::ReaderWaits => "a slow reader would hold upstream's surfaces or dma-bufs",
            Self::TooManyHeld => "readers hold as many of upstream's surfaces or dma-bufs as it can spare",
            Self::NotShareable => "upstream's surfaces or dma-bufs cannot be shared with other processes",
        })
    }
}

/// Counted on the streaming thread, read from any thread. The exporter has the numbers of copies by
/// reason.
#[derive(Default)]
pub(super) struct CopyStats {
    bytes: AtomicU64,
    by_path: [AtomicU64; Path::ALL.len()],
    /// A bit for each reason that was first counted since [`CopyStats::take_warnings`].
    unreported: AtomicU32,
}

impl CopyStats {
    /// Counts one copy, by its reason at the exporter; returns true if it is the first for that.
    pub(super) fn count(&self, exporter: &Exporter, reason: CopyReason, bytes: u64) -> bool {
        self.bytes.fetch_add(bytes, Relaxed);
        let is_first = exporter.count_copy(reason.name()) == 1;
        if is_first {
            self.unreported.fetch_or(1 << reason as u32, Relaxed);
        }
        is_first
    }

    /// Returns the warnings about reasons that were counted for the first time since the last call.
    pub(super) fn take_warnings(&self) -> impl Iterator<Item = &'static str> {
        let unreported = match self.unreported.load(Relaxed) {
            0 => 0,
            _ => self.unreported.swap(0, Relaxed),
        };
        let is_new = move |reason: &CopyReason| unreported & (1 << *reason as u32) != 0;
        CopyReason::ALL.into_iter().filter(is_new).filter_map(CopyReason::warning)
    }

    /// Counts a published frame.
    pub(super) fn published(&self, path: Path) {
        self.by_path[path as usize].fetch_add(1, Relaxed);
    }

    /// Name of each path, and its number of frames.
    pub(super) fn paths(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Path::ALL.into_iter().map(|path| (path.name(), self.by_path[path as usize].load(Relaxed)))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }
}

/// Returns name and count of each reason, from the exporter's.
pub(super) fn by_reason(copies: &[CopyCount]) -> impl Iterator<Item = (&'static str, u64)> {
    CopyReason::ALL.into_iter().map(|reason| {
        let found = copies.iter().find(|copies| copies.reason == reason.name());
        (reason.name(), found.map_or(0, |copies| copies.count))
    })
}
