// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statistics of an exporter and its readers.

use super::notice::ReaderInfo;
use crate::selected::Selected;
use frameshare_protocol::{Ages, CopyCount, FenceKind, MemoryKind};
use std::time::Duration;

/// Statistics of one reader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderStats {
    /// Identity of the reader.
    pub info: ReaderInfo,
    /// Frames taken and not released.
    pub held: u32,
    /// Frames published and not taken.
    pub queued: u32,
    /// Frames that wait for the reader's credit: its backlog.
    pub waiting: u32,
    /// Frames in adopted memory, taken or not, that the reader keeps from their owner.
    pub adopted: u32,
    /// Frames published to the reader, revoked ones included.
    pub sent: u64,
    /// Lost frames.
    pub lost: u64,
    /// Ages of the frames that the reader took, by its own count.
    pub ages: Ages,
    /// Frames that the reader's application copied, by reason and its own count.
    pub copies: Vec<CopyCount>,
    /// The reader copies frames of the present format into its default layout.
    pub copies_for_layout: bool,
    /// The kind of fence, and the reason for it.
    pub fence: Selected<FenceKind>,
    /// Distance in frames from the oldest untaken frame, in the backlog or not, to the newest; 0 if
    /// all are taken.
    pub lag: u64,
}

/// Frames that were published in dma-bufs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DmaBufStats {
    /// All of them.
    pub frames: u64,
    /// Those that a device still wrote, by a fence of its driver, when they were published: readers
    /// waited for it. 0 if the driver attaches no fences, and completes frames before it passes
    /// them on.
    pub fenced: u64,
}

/// Statistics of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The present readers.
    pub readers: Vec<ReaderStats>,
    /// Readers that have left or were disconnected, and still hold frames.
    pub draining: Vec<ReaderStats>,
    /// Frames published.
    pub published: u64,
    /// Time that all frames together waited for their publication: see
    /// `Frame::arrived`.
    pub waited: Duration,
    /// Slots allocated.
    pub slots: u32,
    /// Free slots.
    pub free_slots: u32,
    /// Maximum number of slots.
    pub max_slots: u32,
    /// Size of a slot in bytes; 0 before the first.
    pub slot_size: u64,
    /// The kind of the slots' memory, and the reason for it.
    pub memory: Selected<MemoryKind>,
    /// Bytes of retired generations, and of retired slots of others, that are not freed yet; and of
    /// memory that other users were given and that is kept to be used again.
    pub retired_bytes: u64,
    /// Slots taken out of use since they were not needed for some time after a burst.
    pub trimmed_slots: u64,
    /// Bytes of frames in backlogs: of their slots, and of metadata that exceeds their areas.
    pub waiting_bytes: u64,
    /// Units of the present group of pictures that are kept for joining readers.
    pub gop_units: u32,
    /// Bytes of these units.
    pub gop_bytes: u64,
    /// Maximum of these bytes.
    pub max_gop_bytes: u64,
    /// Readers admitted so far.
    pub readers_total: u64,
    /// Copied frames by reason: see `Exporter::count_copy`.
    pub copies: Vec<CopyCount>,
    /// Frames published in dma-bufs.
    pub dma_bufs: DmaBufStats,
    /// The exporter uses its GPU as a client of NVIDIA's multi-process service (MPS): a fatal error
    /// of another client ends its context, too.
    pub is_mps_client: bool,
}
