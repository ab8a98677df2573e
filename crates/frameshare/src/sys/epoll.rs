// SPDX-License-Identifier: MIT OR Apache-2.0

//! A set of descriptors with a number for each, under which their events are reported.

use super::poll::{Timeout, wait};
use rustix::event::{
    PollFd, PollFlags, Timespec,
    epoll::{self, CreateFlags, EventData, EventFlags},
};
use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, OwnedFd},
};

/// Maximum number of events that one call of [`Epoll::wait`] returns.
const MAX_EVENTS: usize = 256;

/// Watched events of a descriptor. Errors and hang-ups are always watched. All but
/// [`Interest::InputUntilRead`] report one event, and the next one after the descriptor was armed
/// again: the thread that handles an event need not be the one that waits for others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Errors and hang-ups alone.
    HangUp,
    /// Something to read.
    Input,
    /// Something to read, or room to write.
    InputAndRoom,
    /// Something to read, reported by each wait until it is read.
    InputUntilRead,
}

/// An epoll instance.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// The error of epoll_create(2).
    pub fn new() -> io::Result<Self> {
        Ok(Self(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor, whose events have this number. It must be removed before it is closed.
    ///
    /// # Errors
    /// The error of epoll_ctl(2), such as a lack of memory.
    pub fn add(&self, fd: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(number), interest.flags())?)
    }

    /// Arms a descriptor of the set again, for these events.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    pub fn arm(&self, fd: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.0, fd, EventData::new_u64(number), interest.flags())?)
    }

    /// Removes a descriptor, if it is in the set.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    /// Sleeps until a descriptor has an event or the deadline has passed, and appends the numbers
    /// of those that have one.
    ///
    /// # Errors
    /// The error of poll(2) or epoll_wait(2), except for EINTR.
    pub fn wait(&self, numbers: &mut Vec<u64>, timeout: Timeout) -> io::Result<()> {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let limit = match timeout {
            Timeout::Never => None,
            Timeout::At(_) => {
                // epoll_wait(2) counts in milliseconds before Linux 5.11.
                if !timeout.is_over() {
                    wait(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout)?;
                }
                Some(&now)
            }
        };
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); MAX_EVENTS];
        loop {
            match epoll::wait(&self.0, &mut events, limit) {
                Ok((found, _)) => {
                    numbers.extend(found.iter().map(|event| event.data.u64()));
                    return Ok(());
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Interest {
    fn flags(self) -> EventFlags {
        match self {
            Self::HangUp => EventFlags::ONESHOT,
            Self::Input => EventFlags::IN | EventFlags::ONESHOT,
            Self::InputAndRoom => EventFlags::IN | EventFlags::OUT | EventFlags::ONESHOT,
            Self::InputUntilRead => EventFlags::IN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::Interrupt;
    use std::{os::unix::net::UnixStream, time::Duration};

    #[test]
    fn event_is_reported_once_until_armed_again() {
        let epoll = Epoll::new().unwrap();
        let interrupts = [(); 2].map(|()| Interrupt::new().unwrap());
        for (number, interrupt) in interrupts.iter().enumerate() {
            epoll.add(interrupt, number as u64, Interest::Input).unwrap();
        }
        let found = || {
            let mut found = Vec::new();
            epoll.wait(&mut found, Timeout::after(Some(Duration::ZERO))).unwrap();
            found
        };
        assert_eq!(found(), []);
        interrupts[1].set();
        assert_eq!(found(), [1]);
        assert_eq!(found(), []);
        epoll.arm(&interrupts[1], 7, Interest::Input).unwrap();
        assert_eq!(found(), [7]);
        epoll.remove(&interrupts[1]);
        epoll.remove(&interrupts[1]);
        interrupts[0].set();
        assert_eq!(found(), [0]);
    }

    #[test]
    fn input_until_read_is_reported_by_each_wait() {
        let epoll = Epoll::new().unwrap();
        let interrupt = Interrupt::new().unwrap();
        epoll.add(&interrupt, 1, Interest::InputUntilRead).unwrap();
        interrupt.set();
        // Without a deadline, past one, and before one.
        for timeout in [None, Some(Duration::ZERO), Some(Duration::from_secs(60))] {
            let mut found = Vec::new();
            epoll.wait(&mut found, Timeout::after(timeout)).unwrap();
            assert_eq!(found, [1]);
        }
        interrupt.clear();
        let mut found = Vec::new();
        epoll.wait(&mut found, Timeout::after(Some(Duration::ZERO))).unwrap();
        assert_eq!(found, []);
    }

    #[test]
    fn hang_up_is_reported_without_other_interest() {
        let epoll = Epoll::new().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        epoll.add(&ours, 1, Interest::HangUp).unwrap();
        std::io::Write::write_all(&mut &theirs, b"text").unwrap();
        let mut found = Vec::new();
        epoll.wait(&mut found, Timeout::after(Some(Duration::from_millis(20)))).unwrap();
        assert_eq!(found, []);
        drop(theirs);
        epoll.wait(&mut found, Timeout::after(Some(Duration::from_secs(60)))).unwrap();
        assert_eq!(found, [1]);
    }
}
