// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages with file descriptors between a case and its peers.
//!
//! # Safety
//! This file takes ownership of one file descriptor that was inherited by number.
#![allow(unsafe_code)]

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum number of descriptors in one message.
const FDS: usize = 4;

/// One end of a connection.
pub struct Link(OwnedFd);

impl Link {
    /// Creates a connected pair; both ends are close-on-exec.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn pair() -> Result<(Link, Link)> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Link(ours), Link(theirs)))
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
        Ok(Link(fd))
    }

    /// Sets the receive timeout.
    pub fn set_patience(&self, patience: Duration) -> Result<()> {
        Ok(sockopt::set_socket_timeout(&self.0, sockopt::Timeout::Recv, Some(patience))?)
    }

    /// Sends a message with copies of `fds`.
    ///
    /// # Errors
    /// Fails if there are more than four descriptors, or if the peer has closed the connection.
    pub fn send(&self, message: &impl Serialize, fds: &[BorrowedFd<'_>]) -> Result<()> {
        let bytes = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            bail!("more than {FDS} descriptors in one message");
        }
        rustix::net::sendmsg(&self.0, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Waits for a message; `None` when the peer has closed the connection.
    ///
    /// # Errors
    /// Fails on a malformed message, or when the time limit is over.
    pub fn receive<T: DeserializeOwned>(&self) -> Result<Option<(T, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; 256 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = loop {
            let into = &mut [IoSliceMut::new(&mut bytes)];
            match rustix::net::recvmsg(&self.0, into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?,
            }
        };
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok(Some((serde_json::from_slice(&bytes[..received.bytes])?, fds)))
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
