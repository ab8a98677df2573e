// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interrupts: they end waits of this process.

use rustix::{
    event::{EventfdFlags, eventfd},
    io::{read, write},
    thread::futex,
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
};

/// Ends all waits of this process that use it, until it is cleared. Clones share one state.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<Flag>);

#[derive(Debug)]
struct Flag {
    /// The lock keeps flag, event and word consistent.
    state: Mutex<State>,
    event: OwnedFd,
    /// A private futex: 1 while the interrupt is set.
    word: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    raised: bool,
    /// Number of threads that are about to sleep on the word, or do.
    sleepers: u32,
}

impl Interrupt {
    /// An interrupt that is not set.
    ///
    /// # Errors
    /// The error of eventfd(2).
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Flag { state: Mutex::default(), event, word: AtomicU32::new(0) })))
    }

    /// Ends present and future waits.
    pub fn set(&self) {
        let mut state = self.state();
        if !std::mem::replace(&mut state.raised, true) {
            // The counter cannot overflow: it is written once between two reads.
            let _ = write(&self.0.event, &1u64.to_ne_bytes());
            self.0.word.store(1, Ordering::Release);
            if state.sleepers > 0 {
                let _ = futex::wake(&self.0.word, futex::Flags::PRIVATE, i32::MAX as u32);
            }
        }
    }

    /// Allows waits again.
    pub fn clear(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.raised, false) {
            let _ = read(&self.0.event, &mut [0; 8]);
            self.0.word.store(0, Ordering::Release);
        }
    }

    /// Returns whether it is set.
    pub fn is_set(&self) -> bool {
        self.state().raised
    }

    /// Returns whether the other is a clone of it.
    pub fn is_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Calls `sleep` with the private futex that is 0 until the interrupt is set, unless it is set
    /// already.
    pub(super) fn sleep<T>(&self, sleep: impl FnOnce(&AtomicU32) -> T) -> Option<T> {
        let mut state = self.state();
        if state.raised {
            return None;
        }
        state.sleepers += 1;
        drop(state);
        let slept = sleep(&self.0.word);
        self.state().sleepers -= 1;
        Some(slept)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
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
