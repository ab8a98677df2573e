// SPDX-License-Identifier: MIT OR Apache-2.0

//! The limits of a stream.

use frameshare_protocol::message::SlowTreatment;
use std::time::Duration;

/// The treatment of lossless readers without credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SlowReaders {
    /// The stream waits for them, each at most for the reader timeout: for sources that can be held
    /// back.
    #[default]
    Wait,
    /// Frames wait for them in a backlog; the stream goes on. Beyond the limits of the backlog
    /// the stream waits, as with `Wait`.
    QueueThenWait,
    /// As above; beyond the limits of the backlog they are evicted: for live sources.
    QueueThenDisconnect,
}

impl From<SlowReaders> for SlowTreatment {
    fn from(slow_readers: SlowReaders) -> Self {
        match slow_readers {
            SlowReaders::Wait => Self::Wait,
            SlowReaders::QueueThenWait => Self::QueueThenWait,
            SlowReaders::QueueThenDisconnect => Self::QueueThenDisconnect,
        }
    }
}

/// The limits of a stream, as its owner has configured them.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Maximum number of slots.
    pub max_slots: u32,
    /// Maximum credit of one reader.
    pub max_held: u32,
    /// Maximum time that a lossless reader may hold the stream back.
    pub reader_timeout: Duration,
    /// The treatment of lossless readers without credit.
    pub slow_readers: SlowReaders,
    /// The last frame is kept for readers that join later.
    pub keeps_frames: bool,
    /// Time without a frame after which a joining reader gets the last one.
    pub history_pause: Duration,
    /// Maximum bytes of the frames in all backlogs.
    pub max_queued_bytes: u64,
    /// Maximum age of a frame in a backlog.
    pub max_queued_time: Duration,
    /// Maximum time from a release to the end of the reader's GPU work.
    pub fence_timeout: Duration,
    /// Maximum bytes of retired memory that a reader may keep from being freed.
    pub max_retired_bytes: u64,
    /// Maximum bytes of the kept units.
    pub max_gop_bytes: u64,
}
