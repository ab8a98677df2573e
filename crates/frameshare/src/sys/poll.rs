// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits for descriptors, with a deadline.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    thread::{current_timer_slack, set_current_timer_slack},
};
use std::{
    io,
    num::NonZeroU64,
    time::{Duration, Instant},
};

/// The deadline of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// No deadline.
    Never,
    /// A time.
    At(Instant),
}

impl Timeout {
    /// A time `duration` from now; `None` is no deadline.
    pub fn after(duration: Option<Duration>) -> Self {
        duration.and_then(|duration| Instant::now().checked_add(duration)).map_or(Self::Never, Self::At)
    }

    /// The time, if there is one.
    pub fn at(self) -> Option<Instant> {
        match self {
            Self::Never => None,
            Self::At(at) => Some(at),
        }
    }

    /// Returns the time left; `None` without a deadline.
    pub fn left(self) -> Option<Duration> {
        match self {
            Self::Never => None,
            Self::At(at) => Some(at.saturating_duration_since(Instant::now())),
        }
    }

    /// The earlier of the two.
    pub fn min(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(a), Self::At(b)) => Self::At(a.min(b)),
            (Self::At(at), Self::Never) | (Self::Never, Self::At(at)) => Self::At(at),
            (Self::Never, Self::Never) => Self::Never,
        }
    }

    /// Returns whether the deadline has passed.
    pub fn is_over(self) -> bool {
        matches!(self, Self::At(at) if Instant::now() >= at)
    }
}

/// Sleeps until one of the descriptors is ready (for its events, or because of a hang-up) or the
/// deadline has passed. Sets each one's `revents`; all stay empty on timeout.
///
/// # Errors
/// The error of poll(2), except for EINTR.
pub fn wait(fds: &mut [PollFd<'_>], timeout: Timeout) -> io::Result<()> {
    loop {
        let left = timeout.left();
        let _fine = FineTimer::if_short(left);
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(fds, left.as_ref()) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => fds.iter_mut().for_each(PollFd::clear_revents),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The kernel ends sleeps up to 50 µs late by default: shorter sleeps than this need a finer timer.
const SHORT: Duration = Duration::from_micros(500);

/// Guard of a finer timer slack for this thread. Dropping it restores the former one.
#[derive(Debug)]
pub struct FineTimer {
    before: Option<NonZeroU64>,
}

impl FineTimer {
    /// A finer timer for a sleep of this duration, if it needs one.
    pub(super) fn if_short(left: Option<Duration>) -> Option<Self> {
        left.filter(|left| !left.is_zero() && *left < SHORT).and_then(|_| Self::new())
    }

    /// For the following sleeps of this thread; none if the kernel refuses it.
    pub fn new() -> Option<Self> {
        let before = current_timer_slack().ok()?;
        set_current_timer_slack(NonZeroU64::new(1)).ok()?;
        Some(Self { before: NonZeroU64::new(before) })
    }
}

impl Drop for FineTimer {
    fn drop(&mut self) {
        let _ = set_current_timer_slack(self.before);
    }
}

/// Returns whether a poll found an event at a descriptor.
pub fn is_ready(fd: &PollFd<'_>) -> bool {
    fd.revents() != PollFlags::empty()
}
