// SPDX-License-Identifier: MIT OR Apache-2.0

//! Unblocking of GPU streams that wait for a dead exporter.
//!
//! A stream that waits for a timeline value continues as soon as the value is stored. The queue of
//! a dying process continues for some milliseconds and can write an older value over it, so the
//! value is stored again until the process has been dead for a while. (Measured on an H200, driver
//! 580: 83 times, the last one 22 ms after the kill.) Then it stays: a stream that is delayed by
//! other work finds it later, in a page that lives as long as the connection's streams have work.
//!
//! A live exporter that has only missed a deadline can overwrite the value for an unlimited time.
//! The value is then stored until the process has ended, or the connection, its frames and the
//! streams that read them have, at intervals that grow with the time since it was last overwritten.
//! One thread does that for all connections of the process.

use super::pending::PendingFrames;
use crate::{
    gpu,
    gpu::poller::{Polled, Poller},
    reader::lease::{Channel, Teardown, Watcher},
    sys::{Interrupt, Timeout, is_ready, wait},
};
use frameshare_cuda::context::Context;
use once_cell::sync::Lazy;
use rustix::event::{PollFd, PollFlags};
use std::{
    os::fd::OwnedFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Time after the end of a process during which its GPU queue can still write.
const AFTERLIFE: Duration = Duration::from_millis(250);
/// Time that an exporter has to finish its queued work after its close message.
const PATIENCE: Duration = Duration::from_secs(2);
/// Initial pause between two rounds of stores.
const PAUSE: Duration = Duration::from_millis(1);
/// Maximum duration of a burst of stores while another process keeps overwriting the value: a GPU
/// then sees both values equally often.
const CONTEST: Duration = Duration::from_millis(8);

/// The pending frames of a connection whose exporter will not signal their fences.
pub(super) struct Orphan {
    pending: Arc<PendingFrames>,
    context: Arc<Context>,
    /// Readable when the exporter's process has ended, if the kernel provides that.
    gone: Option<OwnedFd>,
    was_gone: Option<Instant>,
    /// No store before this time, unless the process ends.
    begin: Instant,
    /// Time of the last overwrite.
    quiet: Instant,
    contest: Duration,
    _teardown: Teardown,
}

static POLLER: Lazy<Poller<Orphan>> = Lazy::new(|| Poller::new("frameshare-free"));

impl Orphan {
    pub fn new(pending: Arc<PendingFrames>, context: Arc<Context>, gone: Option<OwnedFd>) -> Self {
        let (now, contest) = (Instant::now(), Duration::ZERO);
        let _teardown = Teardown::default();
        Self { pending, context, gone, was_gone: None, begin: now, quiet: now, contest, _teardown }
    }

    /// Unblocks all streams that wait for these frames: at once, or with `is_closed` when the
    /// exporter, which has sent a close message, has had time to finish its work.
    pub fn unblock(mut self, is_closed: bool) {
        if is_closed {
            self.begin += PATIENCE;
            self.quiet = self.begin;
        }
        POLLER.add(self);
    }
}

impl Polled for Orphan {
    /// Stores the values that the exporter will not write.
    fn is_pending(&mut self) -> bool {
        let now = Instant::now();
        if self.was_gone.is_none() && wait_for_end(self.gone.as_ref(), now) {
            (self.was_gone, self.quiet) = (Some(now), now);
        }
        if now < self.begin && self.was_gone.is_none() {
            return true;
        }
        let stored = self.pending.unblock();
        if stored.is_contested {
            self.quiet = now;
            self.contest = (2 * self.contest).clamp(PAUSE, CONTEST);
            while now.elapsed() < self.contest {
                self.pending.unblock();
            }
        } else {
            self.contest = Duration::ZERO;
        }
        if !stored.is_complete {
            return true;
        }
        match self.was_gone {
            Some(since) => since.elapsed() < AFTERLIFE,
            None => self.pending.is_shared() || self.begin.elapsed() < AFTERLIFE,
        }
    }

    fn quiet_since(&self) -> Instant {
        self.quiet
    }

    /// Drops the fence on another thread: the driver may wait for work there, and the work waits
    /// for the stores of this thread for other connections.
    fn done(self) {
        gpu::drop_behind(&self.context.clone(), Some(Vec::new()), self);
    }
}

/// Watches the exporter on a thread of its own while the channel is open and streams wait. An
/// application that waits for its stream asks for no further frame, and one that has dropped its
/// reader asks for none at all; neither would notice the exporter's death or a missed deadline.
pub(super) fn watch(
    channel: &Channel,
    pending: &Arc<PendingFrames>,
    context: &Arc<Context>,
    gone: Option<&OwnedFd>,
    fence_timeout: Duration,
) {
    let Ok(closed) = Interrupt::new() else { return };
    // Without a process handle, only polling and the deadline help.
    let gone = gone.and_then(|gone| gone.try_clone().ok());
    let teardown = Teardown::default();
    channel.set_watcher(Watcher::new(closed.clone(), Arc::clone(&teardown)));
    let (pending, context) = (Arc::clone(pending), Arc::clone(context));
    let run = move || {
        // Dropped last.
        let teardown = teardown;
        let context = context;
        let pending = pending;
        if is_orphaned(&pending, gone.as_ref(), fence_timeout, &closed) {
            Orphan { _teardown: teardown, ..Orphan::new(pending, context, gone) }.unblock(false);
        }
    };
    // If the thread cannot be started, the connection works without the watch.
    let _ = thread::Builder::new().name("frameshare-watch".into()).spawn(run);
}

/// Watches until the exporter dies or violates the protocol, or no stream waits any more.
fn is_orphaned(
    pending: &PendingFrames,
    gone: Option<&OwnedFd>,
    fence_timeout: Duration,
    closed: &Interrupt,
) -> bool {
    // Time by which the oldest frame that streams wait for is late.
    let unwritten = || match pending.oldest(None) {
        Ok(oldest) => oldest.map(|(_, waited)| waited),
        Err(_) => Some(Duration::MAX),
    };
    let is_late = |waited: Duration| {
        let late = waited > fence_timeout;
        if late {
            pending.give_up();
        }
        late
    };
    loop {
        let mut fds = vec![PollFd::new(closed, PollFlags::IN)];
        fds.extend(gone.map(|gone| PollFd::new(gone, PollFlags::IN)));
        if wait(&mut fds, Timeout::after(Some((fence_timeout / 2).max(PAUSE)))).is_err() || is_ready(&fds[0])
        {
            break;
        }
        if fds.get(1).is_some_and(is_ready) || unwritten().is_some_and(is_late) {
            return true;
        }
    }
    // Usually every frame is written, and nothing needs to be kept alive. A frame that streams
    // still wait for is written or late soon.
    while let Some(waited) = unwritten() {
        if is_late(waited) || wait_for_end(gone, Instant::now()) {
            return true;
        }
        thread::sleep(PAUSE);
    }
    false
}

/// Returns whether the process ended before a deadline.
fn wait_for_end(gone: Option<&OwnedFd>, until: Instant) -> bool {
    let Some(gone) = gone else { return false };
    let mut fds = [PollFd::new(gone, PollFlags::IN)];
    wait(&mut fds, Timeout::At(until)).is_ok() && is_ready(&fds[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::{FenceError, FenceState, ReaderFence, Unblocking, none::NoFence};
    use frameshare_cuda::stream::Stream;
    use frameshare_protocol::{EntryIndex, FenceKind, Sequence};
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts its checks.
    #[derive(Debug)]
    struct Counted(Arc<AtomicU32>);

    impl ReaderFence for Counted {
        fn kind(&self) -> FenceKind {
            FenceKind::Timeline
        }

        fn poll_ready(&self, entry: EntryIndex, sequence: Sequence) -> Result<FenceState, FenceError> {
            NoFence.poll_ready(entry, sequence)
        }

        fn wait_ready(&self, _: EntryIndex, _: Sequence, _: &Stream) -> Result<(), FenceError> {
            Ok(())
        }

        fn signal_released(&self, _: EntryIndex, _: Sequence, _: &Stream) -> Result<(), FenceError> {
            Ok(())
        }

        fn check(&self) -> Result<(), FenceError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        fn unblock(&self) -> Unblocking {
            NoFence.unblock()
        }
    }

    #[test]
    fn watch_sleeps_between_checks_whatever_the_timeout() {
        for timeout in [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(10)] {
            let checks = Arc::new(AtomicU32::new(0));
            let pending = PendingFrames::new(Arc::new(Counted(checks.clone())));
            let closed = Interrupt::new().unwrap();
            let begin = Instant::now();
            thread::scope(|scope| {
                let watch = scope.spawn(|| is_orphaned(&pending, None, timeout, &closed));
                thread::sleep(Duration::from_millis(100));
                closed.set();
                assert!(!watch.join().unwrap());
            });
            // At most one check a pause, and one at the end.
            let most = begin.elapsed().as_millis() + 2;
            let checks = u128::from(checks.load(Ordering::Relaxed));
            assert!(checks <= most, "{timeout:?}: {checks} checks in {most} ms");
        }
    }
}
