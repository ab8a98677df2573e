// SPDX-License-Identifier: MIT OR Apache-2.0

//! Control sockets that send unchecked packets and descriptors.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, listen,
        recvmsg, sendmsg, socket_with, socketpair,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

/// Most descriptors in one packet (`SCM_MAX_FD`).
const MANY: usize = 253;
/// More bytes than any message of the protocol has.
const LONG: usize = 256 * 1024;

/// One end of a control connection.
#[derive(Debug)]
pub struct Channel(OwnedFd);

/// Listening socket.
#[derive(Debug)]
pub struct Listener(OwnedFd);

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// Waits until a descriptor is readable; false after the timeout.
fn readable(fd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&timeout))? > 0)
}

impl Channel {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = socket()?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// Creates a connected pair; both ends are close-on-exec.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends one packet with any descriptors. Blocks while the peer's queue is full.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(packet, fds, SendFlags::NOSIGNAL)
    }

    /// Like [`send`](Self::send), without blocking.
    ///
    /// # Errors
    ///
    /// Those of the system calls, `WouldBlock` among them.
    pub fn try_send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(packet, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    }

    fn send_with(&self, packet: &[u8], fds: &[BorrowedFd<'_>], flags: SendFlags) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        sendmsg(&self.0, &[IoSlice::new(packet)], &mut control, flags)?;
        Ok(())
    }

    /// Receives the next packet and its descriptors; `None` if the peer closed the connection.
    ///
    /// # Errors
    ///
    /// `TimedOut` if no packet arrives in time.
    pub fn receive(&self, timeout: Duration) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        if !readable(&self.0, timeout)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let mut packet = vec![0; LONG];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MANY))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut packet)], &mut control, flags) {
                Err(Errno::INTR | Errno::CONNRESET) => {}
                message => break message?,
            }
        };
        let rights = |part| match part {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        };
        let fds = control.drain().filter_map(rights).flatten().collect();
        packet.truncate(message.bytes);
        Ok((message.bytes > 0).then_some((packet, fds)))
    }

    /// Whether the peer closes the connection within the timeout. Receives nothing.
    pub fn awaits_end(&self, timeout: Duration) -> bool {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    /// Whether the peer closes the connection within the timeout. Discards packets that arrive
    /// before.
    pub fn hangs_up(&self, timeout: Duration) -> bool {
        loop {
            match self.receive(timeout) {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(error) => return error.kind() != io::ErrorKind::TimedOut,
            }
        }
    }
}

impl From<OwnedFd> for Channel {
    fn from(socket: OwnedFd) -> Self {
        Self(socket)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// Listens at `path`.
    ///
    /// # Errors
    ///
    /// Those of the system calls.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = socket()?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        listen(&socket, 64)?;
        Ok(Self(socket))
    }

    /// Accepts the next connection.
    ///
    /// # Errors
    ///
    /// `TimedOut` if there is none in time.
    pub fn accept(&self, timeout: Duration) -> io::Result<Channel> {
        if !readable(&self.0, timeout)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Channel(accept_with(&self.0, SocketFlags::CLOEXEC)?))
    }
}
