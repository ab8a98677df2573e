// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits of this process's GPU streams for speculatively delivered frames.

use crate::fence::{FenceError, FenceState, ReaderFence};
use frameshare_cuda::context::Context;
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The fence of one session, and the waits for it. Outlives the session if the streams do.
#[derive(Debug)]
pub(super) struct Waits {
    pub fence: Box<dyn ReaderFence>,
    /// The context that frames are read in.
    pub gpu: Option<Arc<Context>>,
    ahead: Mutex<Ahead>,
    /// The exporter lives, but missed a deadline or violated the protocol.
    given_up: AtomicBool,
}

/// Frames that were not written at their delivery.
#[derive(Debug, Default)]
struct Ahead {
    /// Their entries and sequence numbers, oldest first.
    frames: VecDeque<(usize, u64)>,
    /// The oldest frame that was unwritten at the last poll, and the time since when.
    unwritten: Option<(u64, Instant)>,
}

impl Waits {
    pub fn new(fence: Box<dyn ReaderFence>, gpu: Option<Arc<Context>>) -> Self {
        Self { fence, gpu, ahead: Mutex::default(), given_up: AtomicBool::new(false) }
    }

    /// Returns whether the exporter has not written a frame yet.
    pub fn is_pending(&self, entry: usize, sequence: u64) -> Result<bool, FenceError> {
        Ok(self.fence.poll_ready(entry, sequence)? == FenceState::Pending)
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a speculatively delivered frame.
    pub fn push(&self, entry: usize, sequence: u64) {
        self.ahead().frames.push_back((entry, sequence));
    }

    /// Drops the records of frames in an entry.
    pub fn forget(&self, entry: usize) {
        self.ahead().frames.retain(|(used, _)| *used != entry);
    }

    /// Returns the oldest unwritten frame that was delivered, or is the `next` to be, and the time
    /// that it has been waited for: frames are written in order.
    pub fn oldest(&self, next: Option<u64>) -> Result<Option<(u64, Duration)>, FenceError> {
        self.fence.check()?;
        let mut ahead = self.ahead();
        while let Some(&(entry, sequence)) = ahead.frames.front() {
            if self.is_pending(entry, sequence)? {
                break;
            }
            ahead.frames.pop_front();
        }
        let Some(oldest) = ahead.frames.front().map(|(_, sequence)| *sequence).or(next) else {
            ahead.unwritten = None;
            return Ok(None);
        };
        let since = match ahead.unwritten {
            Some((of, since)) if of == oldest => since,
            _ => Instant::now(),
        };
        ahead.unwritten = Some((oldest, since));
        Ok(Some((oldest, since.elapsed())))
    }

    /// Number of frames that were delivered before a ready fence that was never signaled.
    pub fn count(&self) -> u64 {
        let is_written = |entry, sequence| matches!(self.is_pending(entry, sequence), Ok(false));
        let ahead = self.ahead();
        ahead.frames.iter().filter(|(entry, sequence)| !is_written(*entry, *sequence)).count() as u64
    }

    /// Ends speculative delivery for a live exporter.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// Returns whether speculative delivery has ended.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }
}
