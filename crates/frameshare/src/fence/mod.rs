// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fences: they order one side's work on a frame after the other's.
//!
//! Each reader has one kind of fence. The exporter holds an [`ExporterFence`] for it, the reader a
//! [`ReaderFence`]; both identify a publication by its queue entry and its sequence number. No call
//! of either waits for a GPU: signals are queued behind the work that they stand for, and a poll
//! tells ready from pending.
//!
//! | kind | ready | released | a peer that dies |
//! | --- | --- | --- | --- |
//! | [`none`] | when it is published | when it is released | leaves nothing |
//! | [`timeline`] | a value reaches the sequence number | a value per entry does | leaves values that the survivor stores |
//! | [`event`] | an event per entry | an event per entry | leaves events that are never used again |

pub mod event;
pub mod none;
#[cfg(test)]
pub(crate) mod probe;
pub mod select;
mod signals;
pub mod timeline;

pub use signals::{Signals, Writing, Written};

use frameshare_cuda::stream::Stream;
use frameshare_protocol::{EntryIndex, FenceKind, Sequence};
use std::fmt::Debug;

/// Progress of unblocking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unblocking {
    /// No thread is still making a stream wait.
    pub is_complete: bool,
    /// Another process has overwritten the stored value.
    pub is_contested: bool,
}

impl Unblocking {
    /// Nothing is left to unblock.
    const NONE: Self = Self { is_complete: true, is_contested: false };
}

/// Result of polling a fence; a fence that failed is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceState {
    /// All work before the fence is done.
    Ready,
    /// Some of it is not.
    Pending,
}

/// The exporter's side, for one reader. Dropped off the publishing thread, since that may wait for
/// the GPU.
pub trait ExporterFence: Debug + Send {
    /// The kind.
    fn kind(&self) -> FenceKind;
    /// Signals the ready fence behind the work that writes the frame: at once, or with the other
    /// signals of the same frame by [`Signals::flush`]. Called before the publication.
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails.
    fn signal_ready(
        &mut self,
        entry: EntryIndex,
        sequence: Sequence,
        signals: &mut Signals,
    ) -> Result<(), FenceError>;
    /// Polls the release fence. Called after the reader has released the frame.
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails, or the reader wrote an invalid value.
    fn poll_released(&mut self, entry: EntryIndex, sequence: Sequence) -> Result<FenceState, FenceError>;
}

/// The reader's side.
pub trait ReaderFence: Debug + Send + Sync {
    /// The kind.
    fn kind(&self) -> FenceKind;
    /// Polls the ready fence.
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails, or the exporter wrote an invalid value.
    fn poll_ready(&self, entry: EntryIndex, sequence: Sequence) -> Result<FenceState, FenceError>;
    /// Returns whether a stream that waits for the ready fence is still held back: false once
    /// streams are unblocked, and if the driver fails.
    fn is_held_back(&self, entry: EntryIndex, sequence: Sequence) -> bool;
    /// Makes work queued on `stream` from now on start after the ready fence.
    ///
    /// # Errors
    /// As [`ReaderFence::poll_ready`].
    fn wait_ready(&self, entry: EntryIndex, sequence: Sequence, stream: &Stream) -> Result<(), FenceError>;
    /// Signals the release fence behind the work queued on `stream` so far. Called before the
    /// release.
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails.
    fn signal_released(
        &self,
        entry: EntryIndex,
        sequence: Sequence,
        stream: &Stream,
    ) -> Result<(), FenceError>;
    /// Checks that the exporter has kept the rules of its fence; otherwise streams may wait without
    /// end.
    ///
    /// # Errors
    /// [`FenceError`] if it has not.
    fn check(&self) -> Result<(), FenceError>;
    /// Unblocks streams that wait for a dead exporter, if the kind allows it. From the first call
    /// on no stream is made to wait, and no further frame counts as written. To be called again
    /// until the streams have passed: the stored value may be overwritten.
    fn unblock(&self) -> Unblocking;
}

/// A fence that can no longer be relied on; its connection ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} fence: {cause}")]
#[non_exhaustive]
pub struct FenceError {
    /// The kind of fence.
    pub kind: FenceKind,
    /// The driver's error, or the broken rule.
    pub cause: FenceFault,
}

/// The fault of a fence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FenceFault {
    /// The driver refused, or reports the failure of earlier work.
    #[error(transparent)]
    Driver(#[from] frameshare_cuda::Error),
    /// A release value that an honest peer would not have written.
    #[error("the release word of entry {entry} reads {found} while frame {sequence} is leased")]
    Violation {
        /// The entry.
        entry: EntryIndex,
        /// The frame in it.
        sequence: Sequence,
        /// The value found.
        found: u64,
    },
    /// A ready value that an honest exporter would not have written, or that went back.
    #[error("the ready word reads {found}, and read {before} before")]
    WentBack {
        /// The value found.
        found: u64,
        /// The value before.
        before: u64,
    },
    /// There is no GPU to signal with.
    #[error("there is no GPU on this side")]
    NoGpu,
}

/// Converts the driver's errors.
pub(crate) fn failed(kind: FenceKind) -> impl Fn(frameshare_cuda::Error) -> FenceError {
    move |error| FenceError { kind, cause: error.into() }
}
