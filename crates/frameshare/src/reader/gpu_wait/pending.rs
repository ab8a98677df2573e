// SPDX-License-Identifier: MIT OR Apache-2.0

//! Speculatively delivered frames whose ready fence is pending.

use crate::fence::{FenceError, FenceState, ReaderFence, Unblocking};
use frameshare_protocol::{EntryIndex, FenceKind, Sequence};
use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// The fence of one connection, and the frames that GPU streams may wait for. Outlives the
/// connection if the streams do.
#[derive(Debug)]
pub(super) struct PendingFrames {
    fence: Arc<dyn ReaderFence>,
    delivered: Mutex<Delivered>,
    /// The exporter lives, but missed a deadline or violated the protocol.
    given_up: AtomicBool,
}

/// A frame that was not written at its delivery.
#[derive(Clone, Copy, Debug)]
struct PendingFrame {
    sequence: Sequence,
    entry: EntryIndex,
}

/// Frames that were not written at their delivery.
#[derive(Debug, Default)]
struct Delivered {
    /// Oldest first.
    frames: VecDeque<PendingFrame>,
    /// The oldest frame that was unwritten at the last poll, and the time since when.
    unwritten: Option<(Sequence, Instant)>,
}

impl PendingFrames {
    pub fn new(fence: Arc<dyn ReaderFence>) -> Self {
        Self { fence, delivered: Mutex::default(), given_up: AtomicBool::new(false) }
    }

    pub fn fence(&self) -> &Arc<dyn ReaderFence> {
        &self.fence
    }

    /// The kind of fence.
    pub fn kind(&self) -> FenceKind {
        self.fence.kind()
    }

    /// Returns whether the exporter has not written a frame yet.
    ///
    /// # Errors
    /// The failure of the fence.
    pub fn is_pending(&self, entry: EntryIndex, sequence: Sequence) -> Result<bool, FenceError> {
        Ok(self.fence.poll_ready(entry, sequence)? == FenceState::Pending)
    }

    fn delivered(&self) -> MutexGuard<'_, Delivered> {
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a speculatively delivered frame.
    pub fn push(&self, entry: EntryIndex, sequence: Sequence) {
        self.delivered().frames.push_back(PendingFrame { sequence, entry });
    }

    /// Drops the records of frames in an entry.
    pub fn forget(&self, entry: EntryIndex) {
        self.delivered().frames.retain(|frame| frame.entry != entry);
    }

    /// Returns the oldest unwritten frame that was delivered, or is the `next` to be, and the time
    /// that it has been waited for: frames are written in order.
    ///
    /// # Errors
    /// The failure of the fence.
    pub fn oldest(&self, next: Option<Sequence>) -> Result<Option<(Sequence, Duration)>, FenceError> {
        self.fence.check()?;
        let mut delivered = self.delivered();
        while let Some(&PendingFrame { sequence, entry }) = delivered.frames.front() {
            if self.is_pending(entry, sequence)? {
                break;
            }
            delivered.frames.pop_front();
        }
        let Some(oldest) = delivered.frames.front().map(|frame| frame.sequence).or(next) else {
            delivered.unwritten = None;
            return Ok(None);
        };
        let since = match delivered.unwritten {
            Some((of, since)) if of == oldest => since,
            _ => Instant::now(),
        };
        delivered.unwritten = Some((oldest, since));
        Ok(Some((oldest, since.elapsed())))
    }

    /// Number of frames that were delivered before a ready fence that was never signaled.
    pub fn count(&self) -> u64 {
        let is_written =
            |frame: &&PendingFrame| matches!(self.is_pending(frame.entry, frame.sequence), Ok(false));
        let delivered = self.delivered();
        delivered.frames.iter().filter(|frame| !is_written(frame)).count() as u64
    }

    /// Ends speculative delivery for a live exporter.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// Returns whether speculative delivery has ended.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    /// Returns whether the fence has other holders: the connection, its frames, or their streams.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.fence) > 1
    }

    /// Stores the values that the exporter will not write.
    pub fn unblock(&self) -> Unblocking {
        self.fence.unblock()
    }
}
