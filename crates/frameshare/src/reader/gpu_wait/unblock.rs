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
    reader::lease::Teardown,
    sys::{PerProcess, Timeout, is_ready, wait},
};
use frameshare_cuda::context::Context;
use rustix::event::{PollFd, PollFlags};
use std::{
    os::fd::OwnedFd,
    sync::Arc,
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
    gone: Option<Arc<OwnedFd>>,
    was_gone: Option<Instant>,
    /// No store before this time, unless the process ends.
    begin: Instant,
    /// Time of the last overwrite.
    quiet: Instant,
    contest: Duration,
    _teardown: Teardown,
}

static POLLER: PerProcess<Poller<Orphan>> = PerProcess::new(|| Poller::new("frameshare-free"));

impl Orphan {
    pub fn new(pending: Arc<PendingFrames>, context: Arc<Context>, gone: Option<Arc<OwnedFd>>) -> Self {
        let (now, contest) = (Instant::now(), Duration::ZERO);
        let _teardown = Teardown::default();
        Self { pending, context, gone, was_gone: None, begin: now, quiet: now, contest, _teardown }
    }

    /// The same, which drops `teardown` last.
    pub fn with_teardown(self, teardown: Teardown) -> Self {
        Self { _teardown: teardown, ..self }
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
        if self.was_gone.is_none() && wait_for_end(self.gone.as_deref(), now) {
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

/// Returns whether the process ended before a deadline.
pub(super) fn wait_for_end(gone: Option<&OwnedFd>, until: Instant) -> bool {
    let Some(gone) = gone else { return false };
    let mut fds = [PollFd::new(gone, PollFlags::IN)];
    wait(&mut fds, Timeout::At(until)).is_ok() && is_ready(&fds[0])
}
