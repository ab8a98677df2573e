// SPDX-License-Identifier: MIT OR Apache-2.0

//! A fence for tests of its owners: everything is ready at once, unless it is held back.

use super::{FenceError, FenceState, ReaderFence, Unblocking, none::NoFence};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::{EntryIndex, FenceKind, Sequence};
use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

/// Counts its checks, and drops a value with itself.
#[derive(Debug)]
pub struct Probe<T> {
    kind: FenceKind,
    checks: Arc<AtomicU32>,
    is_held_back: AtomicBool,
    _value: T,
}

impl<T> Probe<T> {
    /// Makes a fence of this kind.
    pub fn new(kind: FenceKind, value: T) -> Self {
        Self { kind, checks: Arc::default(), is_held_back: AtomicBool::new(false), _value: value }
    }

    /// Holds back all streams that wait, or lets them continue.
    pub fn hold_back(&self, holds: bool) {
        self.is_held_back.store(holds, Ordering::SeqCst);
    }

    /// The number of checks, which outlives the fence.
    pub fn checks(&self) -> Arc<AtomicU32> {
        self.checks.clone()
    }
}

impl<T: Debug + Send + Sync> ReaderFence for Probe<T> {
    fn kind(&self) -> FenceKind {
        self.kind
    }

    fn poll_ready(&self, entry: EntryIndex, sequence: Sequence) -> Result<FenceState, FenceError> {
        NoFence.poll_ready(entry, sequence)
    }

    fn is_held_back(&self, _: EntryIndex, _: Sequence) -> bool {
        self.is_held_back.load(Ordering::SeqCst)
    }

    fn wait_ready(&self, _: EntryIndex, _: Sequence, _: &Stream) -> Result<(), FenceError> {
        Ok(())
    }

    fn signal_released(&self, _: EntryIndex, _: Sequence, _: &Stream) -> Result<(), FenceError> {
        Ok(())
    }

    fn check(&self) -> Result<(), FenceError> {
        self.checks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn unblock(&self) -> Unblocking {
        NoFence.unblock()
    }
}
