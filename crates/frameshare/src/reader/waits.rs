//! What the GPU streams of this process wait for: frames that were delivered ahead of their fences.

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

/// The fence of one session, and who waits for it. Outlives the session where streams do.
#[derive(Debug)]
pub(super) struct Waits {
    pub fence: Box<dyn ReaderFence>,
    /// The context that frames are read in.
    pub gpu: Option<Arc<Context>>,
    ahead: Mutex<Ahead>,
    /// The exporter lives, and was found to be late or to break the rules.
    given_up: AtomicBool,
}

/// Frames that were not written when they were delivered.
#[derive(Debug, Default)]
struct Ahead {
    /// With their entries, oldest first.
    frames: VecDeque<(usize, u64)>,
    /// The oldest frame that was not written when it was looked at last, and has not been since this moment.
    unwritten: Option<(u64, Instant)>,
}

impl Waits {
    pub fn new(fence: Box<dyn ReaderFence>, gpu: Option<Arc<Context>>) -> Self {
        Self { fence, gpu, ahead: Mutex::default(), given_up: AtomicBool::new(false) }
    }

    /// Whether a frame has not been written by its exporter yet.
    pub fn is_pending(&self, entry: usize, sequence: u64) -> Result<bool, FenceError> {
        Ok(self.fence.poll_ready(entry, sequence)? == FenceState::Pending)
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        self.ahead.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a frame is delivered ahead.
    pub fn push(&self, entry: usize, sequence: u64) {
        self.ahead().frames.push_back((entry, sequence));
    }

    /// Leaves out the frames that were in an entry.
    pub fn forget(&self, entry: usize) {
        self.ahead().frames.retain(|(used, _)| *used != entry);
    }

    /// The oldest frame that has not been written though it was delivered, or is the `next` to be, and for how long it has
    /// kept everyone waiting: frames are written in order.
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

    /// How many frames were delivered ahead of a fence that has not come.
    pub fn count(&self) -> u64 {
        let is_written = |entry, sequence| matches!(self.is_pending(entry, sequence), Ok(false));
        let ahead = self.ahead();
        ahead.frames.iter().filter(|(entry, sequence)| !is_written(*entry, *sequence)).count() as u64
    }

    /// Gives up an exporter that lives: no frame of it is delivered any more before it is written.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::SeqCst);
    }

    /// Whether the exporter was given up.
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }
}
