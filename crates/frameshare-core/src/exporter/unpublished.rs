// SPDX-License-Identifier: MIT OR Apache-2.0

//! A frame between its check and its readers.

use super::{
    link::Weight,
    notice::ReaderInfo,
    parts::Content,
    system::{Signals, System},
    unit::Unit,
};
use frameshare_protocol::Descriptor;
use std::{any::Any, sync::Arc};

/// The reason why a frame was not published.
#[derive(Debug)]
pub enum NotPublished<S: System> {
    /// The stream is closed.
    Closed,
    /// The frame is in adopted memory that was retired.
    Retired,
    /// Rows of this plane overlap.
    OverlappingRows {
        /// The plane.
        plane: usize,
    },
    /// The frame is in adopted memory, and would wait for the credit of a lossless reader.
    WouldWait,
    /// The frame is in adopted memory, which this reader cannot read.
    NotForAll {
        /// The reader.
        reader: ReaderInfo,
        /// The reason, for people.
        why: String,
    },
    /// The GPU that the frame was written on has failed.
    Gpu(S::GpuError),
}

/// A valid frame on its way to the readers.
pub struct Unpublished<'a, S: System> {
    /// The slot that holds it.
    pub slot: &'a S::Slot,
    /// Its writer.
    pub written: <S::Signals as Signals>::Written<'a>,
    /// Its dependency on the frames before it.
    pub unit: Unit,
    /// Metadata, defined by the publisher.
    pub metadata: &'a [u8],
    /// Time in ns of `CLOCK_MONOTONIC` at which it reached the publisher.
    pub arrived: Option<u64>,
    /// Time in ns of `CLOCK_MONOTONIC` after which only lossless readers get it.
    pub late_after: Option<u64>,
    /// User data that is dropped when every lease has ended; taken when the frame is handed out.
    pub keep: Option<Box<dyn Any + Send>>,
    /// Its descriptor, which the publication completes.
    pub descriptor: Descriptor,
    /// The copy of a unit that is kept for joining readers.
    pub content: Option<Arc<Content>>,
    /// The slot for its download, if it is to be downloaded and there is one.
    pub target: Option<S::Slot>,
    /// A slot for its download was asked for, if it is to be downloaded.
    pub was_target_sought: bool,
    /// The readers that get it have it, or wait for it.
    pub is_handed_out: bool,
}

impl<S: System> Unpublished<'_, S> {
    /// The memory that it takes while it waits.
    pub fn weight(&self) -> Weight {
        Weight::of(self.slot, self.metadata.len())
    }
}
