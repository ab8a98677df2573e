// SPDX-License-Identifier: MIT OR Apache-2.0

//! A timer that wakes a polling thread later.

use rustix::{
    io::read,
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// A timer descriptor: readable some time after it was set.
#[derive(Debug)]
pub struct Timer(OwnedFd);

impl Timer {
    /// A timer that is not set.
    ///
    /// # Errors
    /// The error of timerfd_create(2).
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self(timerfd_create(TimerfdClockId::Monotonic, flags)?))
    }

    /// Sets the timer to `duration` from now, a few seconds at most, in place of an earlier
    /// setting; zero ends that alone.
    pub fn set(&self, duration: Duration) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() };
        // Infallible: a valid timerfd and timespec.
        let _ = timerfd_settime(
            &self.0,
            TimerfdTimerFlags::empty(),
            &Itimerspec { it_interval: zero, it_value: at },
        );
    }

    /// Makes the descriptor unreadable again after the timer has expired.
    pub fn clear(&self) {
        let _ = read(&self.0, &mut [0; 8]);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Timeout, is_ready, wait};
    use rustix::event::{PollFd, PollFlags};

    #[test]
    fn timer_expires_once_and_not_at_once() {
        let timer = Timer::new().unwrap();
        let goes_off_within = |ms| {
            let mut fds = [PollFd::new(&timer, PollFlags::IN)];
            wait(&mut fds, Timeout::after(Some(Duration::from_millis(ms)))).unwrap();
            is_ready(&fds[0])
        };
        assert!(!goes_off_within(1));
        timer.set(Duration::from_secs(60));
        assert!(!goes_off_within(20));
        timer.set(Duration::from_millis(20));
        assert!(goes_off_within(60_000));
        timer.clear();
        assert!(!goes_off_within(30));
    }
}
