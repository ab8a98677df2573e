// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readiness of a reader: one descriptor for event loops, the same for its whole life.

use crate::sys::{PollSet, Timer};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
    time::Duration,
};

/// A descriptor that is readable when the present connection, or the search for the next, may have
/// advanced, and at a given time.
#[derive(Debug)]
pub(super) struct Readiness {
    all: PollSet,
    timer: Timer,
    is_timer_set: bool,
}

impl Readiness {
    /// The readiness of a reader in a state whose descriptor is `state`.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn new(state: BorrowedFd<'_>) -> io::Result<Self> {
        let (all, timer) = (PollSet::new()?, Timer::new()?);
        all.add(&timer)?;
        all.add(state)?;
        Ok(Self { all, timer, is_timer_set: false })
    }

    /// Watches the descriptor of a new state instead of the one before.
    ///
    /// # Errors
    /// The error of epoll_ctl(2); the one before is still watched.
    pub fn replace(&self, before: BorrowedFd<'_>, state: BorrowedFd<'_>) -> io::Result<()> {
        self.all.add(state)?;
        self.all.remove(before);
        Ok(())
    }

    /// Sets the time after which the descriptor becomes readable in any case; `None` is never.
    pub fn wake_after(&mut self, time: Option<Duration>) {
        if self.is_timer_set {
            self.timer.clear();
        }
        match time {
            // A timer of zero would be disarmed.
            Some(time) => self.timer.set(time.max(Duration::from_nanos(1))),
            None if self.is_timer_set => self.timer.set(Duration::ZERO),
            None => {}
        }
        self.is_timer_set = time.is_some();
    }
}

impl AsFd for Readiness {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }
}
