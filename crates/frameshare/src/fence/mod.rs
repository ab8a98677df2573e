//! Fences: what makes one side's work on a frame wait for the other's.
//!
//! Each reader has one kind of fence. The exporter holds an [`ExporterFence`] for it, the reader a [`ReaderFence`];
//! both speak of a publication by its queue entry and its sequence number. No call of either waits for a GPU: signals
//! are queued behind the work that they stand for, and a poll tells ready from pending.
//!
//! | kind | ready | released | a peer that dies |
//! | --- | --- | --- | --- |
//! | [`none`] | when it is published | when it is released | leaves nothing |
//! | [`timeline`] | a word reaches the sequence number | a word per entry does | leaves words that the survivor stores |
//! | [`event`] | an event per entry | an event per entry | leaves events that are never used again |

pub mod event;
pub mod none;
mod signals;
pub mod timeline;

pub use signals::{Signals, Written};

use frameshare_cuda::stream::Stream;
use frameshare_protocol::FenceKind;
use std::fmt::Debug;

/// How a rescue is getting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rescue {
    /// No thread is still making a stream wait.
    pub is_complete: bool,
    /// Somebody has written over what was stored before.
    pub is_contested: bool,
}

impl Rescue {
    /// Where there is nothing to be done.
    const NONE: Self = Self { is_complete: true, is_contested: false };
}

/// What a poll of a fence found; a fence that failed is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceState {
    /// All work before the fence is done.
    Ready,
    /// Some of it is not.
    Pending,
}

/// The exporter's side, for one reader. Dropped off the publishing thread: that may wait for the GPU.
pub trait ExporterFence: Debug + Send {
    /// The kind.
    fn kind(&self) -> FenceKind;
    /// Signals that the frame is written once the work that writes it is done: at once, or with the others of the
    /// same frame by [`Signals::flush`]. Called before the publication.
    fn signal_ready(&mut self, entry: usize, sequence: u64, signals: &mut Signals) -> Result<(), FenceError>;
    /// Whether the reader's work on the frame is done. Called after the reader has released it.
    fn poll_released(&mut self, entry: usize, sequence: u64) -> Result<FenceState, FenceError>;
}

/// The reader's side.
pub trait ReaderFence: Debug + Send + Sync {
    /// The kind.
    fn kind(&self) -> FenceKind;
    /// Whether the frame is written.
    fn poll_ready(&self, entry: usize, sequence: u64) -> Result<FenceState, FenceError>;
    /// Work put on `stream` from now on starts when the frame is written.
    fn wait_ready(&self, entry: usize, sequence: u64, stream: &Stream) -> Result<(), FenceError>;
    /// Signals that the frame is no longer read once the work put on `stream` so far is done. Called before the
    /// release.
    fn signal_released(&self, entry: usize, sequence: u64, stream: &Stream) -> Result<(), FenceError>;
    /// Looks whether the exporter has kept to the rules of its fence; streams may wait in vain where it has not.
    fn check(&self) -> Result<(), FenceError>;
    /// Frees streams that wait for an exporter that is gone, as far as the kind allows. From the first call on no stream
    /// is made to wait, and no further frame counts as written. To be called again until the streams are through: what
    /// they wait for may be written over.
    fn rescue(&self) -> Rescue;
}

/// A fence that can no longer be relied on; the connection that it belongs to ends.
#[derive(Debug, thiserror::Error)]
#[error("{kind} fence: {cause}")]
pub struct FenceError {
    /// The kind of fence.
    pub kind: FenceKind,
    /// What the driver said, or which rule was broken.
    pub cause: FenceFault,
}

/// What is wrong with a fence.
#[derive(Debug, thiserror::Error)]
pub enum FenceFault {
    /// The driver refused, or reports the failure of earlier work.
    #[error(transparent)]
    Driver(#[from] frameshare_cuda::Error),
    /// A word holds what an honest peer would not have written.
    #[error("the release word of entry {entry} reads {found} while frame {sequence} is leased")]
    Violation {
        /// The entry.
        entry: usize,
        /// The frame in it.
        sequence: u64,
        /// What the word says.
        found: u64,
    },
    /// The ready word holds what an honest exporter would not have written, or no longer what it had.
    #[error("the ready word reads {found}, and read {before} before")]
    WentBack {
        /// What it says.
        found: u64,
        /// What it has said.
        before: u64,
    },
    /// There is no GPU to signal with.
    #[error("there is no GPU on this side")]
    NoGpu,
}

/// Turns the driver's errors into a fence's.
fn failed(kind: FenceKind) -> impl Fn(frameshare_cuda::Error) -> FenceError {
    move |error| FenceError { kind, cause: error.into() }
}
