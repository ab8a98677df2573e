// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interrupts: they end waits of this process.

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Ends all waits of this process that use it, until it is cleared. Clones share one state.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<Flag>);

#[derive(Debug)]
struct Flag {
    /// The lock keeps flag and event consistent.
    raised: Mutex<bool>,
    event: OwnedFd,
}

impl Interrupt {
    /// An interrupt that is not set.
    ///
    /// # Errors
    /// The error of eventfd(2).
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Flag { raised: Mutex::new(false), event })))
    }

    /// Ends present and future waits.
    pub fn set(&self) {
        let mut raised = self.raised();
        if !std::mem::replace(&mut *raised, true) {
            // The counter cannot overflow: it is written once between two reads.
            let _ = write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    /// Allows waits again.
    pub fn clear(&self) {
        let mut raised = self.raised();
        if std::mem::replace(&mut *raised, false) {
            let _ = read(&self.0.event, &mut [0; 8]);
        }
    }

    /// Returns whether it is set.
    pub fn is_set(&self) -> bool {
        *self.raised()
    }

    /// Returns whether the other is a clone of it.
    pub fn is_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn raised(&self) -> MutexGuard<'_, bool> {
        self.0.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Timeout, is_ready, wait};
    use rustix::event::{PollFd, PollFlags};
    use std::time::Duration;

    #[test]
    fn interrupt_ends_waits_until_cleared() {
        let interrupt = Interrupt::new().unwrap();
        let ready = |timeout| {
            let mut fds = [PollFd::new(&interrupt, PollFlags::IN)];
            wait(&mut fds, Timeout::after(Some(timeout))).unwrap();
            is_ready(&fds[0])
        };
        assert!(!ready(Duration::ZERO));
        interrupt.set();
        interrupt.set();
        assert!(ready(Duration::from_secs(60)) && interrupt.is_set());
        interrupt.clear();
        assert!(!ready(Duration::ZERO) && !interrupt.is_set());
    }

    #[test]
    fn interrupt_between_threads_is_never_lost() {
        let interrupt = Interrupt::new().unwrap();
        let rounds = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..rounds).for_each(|_| interrupt.set()));
            scope.spawn(|| (0..rounds).for_each(|_| interrupt.clear()));
        });
        let mut fds = [PollFd::new(&interrupt, PollFlags::IN)];
        wait(&mut fds, Timeout::after(Some(Duration::ZERO))).unwrap();
        assert_eq!(is_ready(&fds[0]), interrupt.is_set());
    }
}
