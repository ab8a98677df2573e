// SPDX-License-Identifier: MIT OR Apache-2.0

//! A set of descriptors with a number for each, of which one event at a time is reported.

use super::poll::{Timeout, wait};
use rustix::{
    buffer::spare_capacity,
    event::{
        PollFd, PollFlags, Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
    },
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Maximum number of events that one call of [`Epoll::wait`] returns.
const MAX_EVENTS: usize = 256;

/// Watched events of a descriptor. Errors and hang-ups are always watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Errors and hang-ups alone.
    HangUp,
    /// Something to read.
    Input,
    /// Something to read, or room to write.
    InputAndRoom,
}

/// An epoll instance. Each descriptor reports one event, and the next one after it was armed again:
/// the thread that handles an event need not be the one that waits for others.
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
        // epoll_wait(2) counts in milliseconds before Linux 5.11.
        wait(&mut [PollFd::new(&self.0, PollFlags::IN)], timeout)?;
        let mut events: Vec<epoll::Event> = Vec::with_capacity(MAX_EVENTS);
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.0, spare_capacity(&mut events), Some(&now)) {
            Ok(_) => numbers.extend(events.iter().map(|event| event.data.u64())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

impl Interest {
    fn flags(self) -> EventFlags {
        let flags = match self {
            Self::HangUp => EventFlags::empty(),
            Self::Input => EventFlags::IN,
            Self::InputAndRoom => EventFlags::IN | EventFlags::OUT,
        };
        flags | EventFlags::ONESHOT
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
