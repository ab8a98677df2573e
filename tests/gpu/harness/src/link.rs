// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages with file descriptors between a case and its peers.
//!
//! # Safety
//! This file takes ownership of one file descriptor that was inherited by number.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use frameshare_tests::raw::Channel;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::order;

/// Receive timeout that no test reaches.
const FOREVER: Duration = Duration::from_hours(1000);

/// One end of a connection.
pub struct Link {
    channel: Channel,
    patience: Cell<Duration>,
}

impl Link {
    fn new(channel: Channel) -> Link {
        Link { channel, patience: Cell::new(FOREVER) }
    }

    /// Creates a connected pair; both ends are close-on-exec.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn pair() -> Result<(Link, Link)> {
        let (ours, theirs) = Channel::pair()?;
        Ok((Link::new(ours), Link::new(theirs)))
    }

    /// Takes the end that this process inherited under a number, given as an argument.
    ///
    /// # Errors
    /// Fails if the argument is not the number of an open descriptor above 2.
    pub fn inherited(number: &str) -> Result<Link> {
        let number = number.parse().context("invalid descriptor number of the inherited socket")?;
        if number < 3 {
            bail!("descriptor {number} is not an inherited socket");
        }
        // SAFETY: the parent left this descriptor to the process, and nothing else in it uses the
        // number.
        let fd = unsafe { OwnedFd::from_raw_fd(number) };
        rustix::io::fcntl_setfd(&fd, rustix::io::FdFlags::CLOEXEC)?;
        Ok(Link::new(fd.into()))
    }

    /// Sets the receive timeout.
    pub fn set_patience(&self, patience: Duration) {
        self.patience.set(patience);
    }

    /// Sends a message with copies of `fds`.
    ///
    /// # Errors
    /// Fails if the peer has closed the connection.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let number = order::number();
        order::sends(number);
        Ok(self.channel.send(&serde_json::to_vec(&(number, message))?, fds)?)
    }

    /// Waits for a message; `None` when the peer has closed the connection.
    ///
    /// # Errors
    /// Fails on a malformed message, or when the time limit is over.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let Some((packet, fds)) = self.channel.receive(self.patience.get())? else { return Ok(None) };
        let (number, message) = serde_json::from_slice(&packet)?;
        order::received(number);
        Ok(Some((message, fds)))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}
