//! Fences: what makes one side's work on a frame wait for the other's.
//!
//! Each reader has one kind of fence. The exporter holds an [`ExporterFence`] for it, the reader a
//! [`ReaderFence`]; both speak of a publication by its queue entry and its sequence number. No call of either
//! waits for a GPU: signals are queued behind the work that they stand for, and a poll tells ready from pending.

mod none;

pub use none::NoFence;

use frameshare_protocol::FenceKind;
use std::fmt::Debug;

/// What a poll of a fence found; a fence that failed is an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FenceState {
    /// All work before the fence is done.
    Ready,
    /// Some of it is not.
    Pending,
}

/// The exporter's side, for one reader.
pub trait ExporterFence: Debug + Send {
    /// The kind.
    fn kind(&self) -> FenceKind;
    /// Signals that the frame is written once the work that writes it is done. Called before the publication.
    fn signal_ready(&mut self, entry: usize, sequence: u64) -> Result<(), FenceError>;
    /// Whether the reader's work on the frame is done. Called after the reader has released it.
    fn poll_released(&mut self, entry: usize, sequence: u64) -> Result<FenceState, FenceError>;
}

/// The reader's side.
pub trait ReaderFence: Debug + Send + Sync {
    /// The kind.
    fn kind(&self) -> FenceKind;
    /// Whether the frame is written.
    fn poll_ready(&self, entry: usize, sequence: u64) -> Result<FenceState, FenceError>;
    /// Signals that the frame is no longer read once all work on it is done. Called before the release.
    fn signal_released(&self, entry: usize, sequence: u64) -> Result<(), FenceError>;
}

/// A fence that can no longer be relied on; the connection that it belongs to ends.
#[derive(Debug, thiserror::Error)]
#[error("{kind} fence of frame {sequence}: {cause}")]
pub struct FenceError {
    /// The kind of fence.
    pub kind: FenceKind,
    /// The frame.
    pub sequence: u64,
    /// What the system said.
    pub cause: Box<dyn std::error::Error + Send + Sync>,
}
