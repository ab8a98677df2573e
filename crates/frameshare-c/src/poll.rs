// SPDX-License-Identifier: MIT OR Apache-2.0

//! One descriptor for a reader's whole life, for event loops of the caller.
//!
//! The reader's own descriptor changes with each connection, and does not show GPU progress. An
//! epoll instance contains the present one and a timer.

use frameshare::reader::Reader;
use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    io::{Errno, read},
    time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime},
};
use std::{
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

/// A descriptor that is readable when the reader is to be asked again.
#[derive(Debug)]
pub struct Poll {
    epoll: OwnedFd,
    timer: OwnedFd,
}

const ZERO: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Descriptors report once until they are armed again: a held frame keeps the descriptor of a lost
/// connection open, which stays readable.
const ONCE: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

impl Poll {
    /// A descriptor that is readable at once: the reader was not asked yet.
    ///
    /// # Errors
    /// The error of epoll_create1(2) or timerfd_create(2).
    pub fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let poll = Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
        };
        epoll::add(&poll.epoll, &poll.timer, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        poll.set(Some(Duration::ZERO))?;
        Ok(poll)
    }

    /// The descriptor.
    pub fn fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Makes it unreadable, before the reader is asked.
    pub fn clear(&self) {
        let mut events = Vec::with_capacity(8);
        // Each descriptor but the timer reports once.
        while epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&ZERO)).is_ok_and(|count| count > 1)
        {
            events.clear();
        }
        let _ = read(&self.timer, &mut [0; 8]);
    }

    /// Waits for the reader, which has just returned nothing.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    pub fn arm(&self, reader: &Reader) -> io::Result<()> {
        let (fd, data) = (reader.wake_fd(), epoll::EventData::new_u64(1));
        match epoll::modify(&self.epoll, fd, data, ONCE) {
            Err(Errno::NOENT) => epoll::add(&self.epoll, fd, data, ONCE)?,
            armed => armed?,
        }
        self.set(reader.ask_again())
    }

    fn set(&self, after: Option<Duration>) -> io::Result<()> {
        // A timer of 0 is one that is not set.
        let after = after.map_or(Duration::ZERO, |after| after.max(Duration::from_nanos(1)));
        let seconds = after.as_secs().try_into().unwrap_or(i64::MAX);
        let at = Timespec { tv_sec: seconds, tv_nsec: after.subsec_nanos().into() };
        let at = Itimerspec { it_interval: ZERO, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &at)?;
        Ok(())
    }
}
