// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sets of descriptors that are polled as one.

use rustix::event::epoll::{CreateFlags, EventData, EventFlags, add, create, delete};
use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

/// A descriptor that is readable while one of a set is: an epoll instance. A descriptor that is not
/// removed leaves the set when its last duplicate is closed, one of a forked child for example.
#[derive(Debug)]
pub struct PollSet(OwnedFd);

impl PollSet {
    /// An empty set.
    ///
    /// # Errors
    /// The error of epoll_create(2).
    pub fn new() -> io::Result<Self> {
        Ok(Self(create(CreateFlags::CLOEXEC)?))
    }

    /// Adds a descriptor.
    ///
    /// # Errors
    /// The error of epoll_ctl(2).
    pub fn add(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(add(&self.0, fd, EventData::new_u64(0), EventFlags::IN)?)
    }

    /// Removes a descriptor, if it is in the set.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = delete(&self.0, fd);
    }
}

impl AsFd for PollSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Interrupt, Timeout, is_ready, wait};
    use rustix::event::{PollFd, PollFlags};
    use std::time::Duration;

    #[test]
    fn set_is_readable_while_a_member_of_a_member_is() {
        let (outer, inner) = (PollSet::new().unwrap(), PollSet::new().unwrap());
        let members = [(); 2].map(|()| Interrupt::new().unwrap());
        members.iter().for_each(|member| inner.add(member).unwrap());
        outer.add(&inner).unwrap();
        let is_readable = || {
            let mut fds = [PollFd::new(&outer, PollFlags::IN)];
            wait(&mut fds, Timeout::after(Some(Duration::ZERO))).unwrap();
            is_ready(&fds[0])
        };
        assert!(!is_readable());
        members[1].set();
        assert!(is_readable());
        members[0].set();
        members[1].clear();
        assert!(is_readable());
        // A duplicate, such as a forked child's, stays open.
        let _duplicate = inner.as_fd().try_clone_to_owned().unwrap();
        outer.remove(&inner);
        drop(inner);
        assert!(!is_readable());
    }
}
