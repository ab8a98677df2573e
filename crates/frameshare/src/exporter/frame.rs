// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames to be published.

use super::{error::Interrupted, resources::Resources, slot::Slot};
use crate::fence::Written;
use frameshare_core::exporter::{notice::ReaderInfo, unit::Unit, unpublished::NotPublished};
use frameshare_protocol::{
    Descriptor, Plane,
    descriptor::Field,
    limits::{MAX_PAYLOAD, MAX_PLANES},
};
use std::{any::Any, fmt};

/// A frame to be published.
pub struct Frame<'a> {
    /// The slot that holds it.
    pub slot: &'a Slot,
    /// The writer of the frame: the CPU, or work on a GPU stream.
    pub written: Written<'a>,
    /// Bytes from the start of the slot to the start of the frame.
    pub offset: u64,
    /// Size of the frame in bytes.
    pub size: u64,
    /// Presentation time, in ns of `CLOCK_MONOTONIC`.
    pub pts: Option<u64>,
    /// Decoding time, in ns of `CLOCK_MONOTONIC`.
    pub dts: Option<u64>,
    /// Duration in ns.
    pub duration: Option<u64>,
    /// The source's own counter at the frame's start.
    pub media_offset: Option<u64>,
    /// The same counter at its end.
    pub media_offset_end: Option<u64>,
    /// Flags, defined by the publisher.
    pub flags: u64,
    /// Layout of its planes, at most four; none for plain bytes.
    pub planes: &'a [Plane],
    /// Metadata, defined by the publisher.
    pub metadata: &'a [u8],
    /// Time in ns of `CLOCK_MONOTONIC` at which the frame reached the publisher: the time from then
    /// to its publication is counted in the statistics.
    pub arrived: Option<u64>,
    /// Time in ns of `CLOCK_MONOTONIC` after which only lossless readers get the frame; others lose
    /// it. It is compared after the wait for lossless readers.
    pub late_after: Option<u64>,
    /// Its dependency on the frames before it. The exporter keeps a copy of the units in host
    /// memory from the last [`Unit::Key`] on for joining readers
    /// ([`Config::max_gop_bytes`](super::Config::max_gop_bytes)).
    pub unit: Unit,
    /// User data that is dropped when the frame is written and every lease on the publication has
    /// ended: a guard that keeps upstream from writing the frame. A panic of its destructor is
    /// logged; within a call of the exporter, it continues in the caller when the call is done.
    pub keep: Option<Box<dyn Any + Send>>,
}

impl<'a> Frame<'a> {
    /// A frame of `size` bytes at the start of the slot, without times, planes or metadata.
    pub fn new(slot: &'a Slot, size: u64, written: Written<'a>) -> Self {
        Self {
            slot,
            written,
            offset: 0,
            size,
            pts: None,
            dts: None,
            duration: None,
            media_offset: None,
            media_offset_end: None,
            flags: 0,
            planes: &[],
            metadata: &[],
            arrived: None,
            late_after: None,
            unit: Unit::Whole,
            keep: None,
        }
    }

    /// Returns what keeps the frame from having a descriptor in this exporter, if anything does.
    pub(super) fn fault(&self, exporter: u64) -> Option<InvalidFrame> {
        if self.slot.0.exporter != exporter {
            return Some(InvalidFrame::ForeignSlot);
        }
        if self.planes.len() > MAX_PLANES || self.metadata.len() as u64 > MAX_PAYLOAD {
            return Some(InvalidFrame::TooMuch);
        }
        None
    }

    /// Its descriptor, without what its publication adds. The frame has no more than
    /// [`MAX_PLANES`] planes.
    pub(super) fn descriptor(&self) -> Descriptor {
        let mut descriptor = Descriptor {
            slot: self.slot.0.id,
            offset: self.offset,
            size: self.size,
            pts: self.pts,
            dts: self.dts,
            duration: self.duration,
            media_offset: self.media_offset,
            media_offset_end: self.media_offset_end,
            flags: self.flags,
            plane_count: self.planes.len() as u32,
            ..Descriptor::default()
        };
        // No call of memcpy(3): most frames have no planes of their own layout.
        for (to, from) in descriptor.planes.iter_mut().zip(self.planes) {
            *to = *from;
        }
        descriptor
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("slot", self.slot).field("size", &self.size).finish_non_exhaustive()
    }
}

/// A reader that cannot read adopted memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("reader {} ({}, process {}): {why}", reader.id, reader.name, reader.pid)]
#[non_exhaustive]
pub struct CannotAdopt {
    /// The reader.
    pub reader: ReaderInfo,
    /// The reason, for people.
    pub why: String,
}

/// The reason why a frame cannot be published to any reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidFrame {
    /// Its slot is another exporter's.
    #[error("its slot is another exporter's")]
    ForeignSlot,
    /// Its slot is adopted memory that was retired meanwhile, by
    /// [`Exporter::retire_adopted`](super::Exporter::retire_adopted) or since more than 64 dma-bufs
    /// were adopted: adopt the memory again.
    #[error("its slot is adopted memory that was retired: adopt the memory again")]
    Retired,
    /// It has more planes, or more metadata, than a publication can have.
    #[error("too many planes or too much metadata")]
    TooMuch,
    /// It, or one of its planes, is not inside its slot.
    #[error("{0}")]
    Field(Field),
    /// Rows of a plane overlap: its stride is shorter than a row of the format
    /// ([`Exporter::set_format`](super::Exporter::set_format)).
    #[error("rows of plane {plane} overlap: its stride is shorter than a row of the format")]
    OverlappingRows {
        /// The plane.
        plane: usize,
    },
}

/// The reason why a frame was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The wait for a reader was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// Lossless readers have made no room for the frame in time.
    #[error("lossless readers have no room for the frame")]
    NoRoom,
    /// The exporter is closed.
    #[error("the exporter is closed")]
    Closed,
    /// The engine has failed, and closed the stream; with the reason, for people.
    #[error("the exporter has failed: {0}")]
    Failed(String),
    /// The GPU that the frame was written on has failed.
    #[error("the frame cannot be signalled: {0}")]
    Gpu(frameshare_cuda::Error),
    /// The frame is in adopted memory, which some reader cannot read; no reader has it.
    #[error("not every reader can read adopted memory: {0}")]
    NotForAll(#[from] CannotAdopt),
    /// The frame is in adopted memory, and would wait for the credit of a lossless reader; no
    /// reader has it. A copy may wait.
    #[error("a frame in adopted memory cannot wait for a reader")]
    WouldWait,
    /// The frame's fields are invalid.
    #[error("the frame cannot be published: {0}")]
    Invalid(#[from] InvalidFrame),
}

impl From<NotPublished<Resources>> for PublishError {
    fn from(why: NotPublished<Resources>) -> Self {
        match why {
            NotPublished::Closed => Self::Closed,
            NotPublished::Retired => Self::Invalid(InvalidFrame::Retired),
            NotPublished::OverlappingRows { plane } => Self::Invalid(InvalidFrame::OverlappingRows { plane }),
            NotPublished::WouldWait => Self::WouldWait,
            NotPublished::NotForAll { reader, why } => Self::NotForAll(CannotAdopt { reader, why }),
            NotPublished::Gpu(error) => Self::Gpu(error),
        }
    }
}

impl From<Interrupted> for PublishError {
    fn from(Interrupted: Interrupted) -> Self {
        Self::Interrupted
    }
}
