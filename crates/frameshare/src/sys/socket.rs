// SPDX-License-Identifier: MIT OR Apache-2.0

//! The control socket: packets, with file descriptors beside them.

use super::{
    peer::peer_uid,
    untrusted_fd::{UntrustedFd, may_connect, too_many_parked},
};
use frameshare_protocol::limits::{MAX_FDS, MAX_MESSAGE};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, RecvMsg, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags,
        SocketType, recvmsg, sendmsg, shutdown, socket_with,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
};

/// Maximum number of descriptors in one packet (`SCM_MAX_FD` of the kernel).
pub(super) const SCM_MAX_FD: usize = 253;

pub(super) const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// One connection. Never blocks.
#[derive(Debug)]
pub struct Socket {
    /// No other process reads from it.
    fd: UntrustedFd,
    /// Whether the peer may send descriptors. Those of other peers are never received: they stay in
    /// the queue, which a closer thread closes.
    takes_descriptors: bool,
}

/// The outcome of [`Socket::receive`].
#[derive(Debug)]
pub enum Received {
    /// A packet, and its descriptors.
    Packet(Vec<u8>, Vec<UntrustedFd>),
    /// No packet has arrived.
    Nothing,
    /// The peer hung up.
    HungUp,
}

/// Returns the name of an abstract socket (unix(7)): the text behind an `@`. `None` for the path of
/// a file.
pub fn abstract_name(path: &Path) -> Option<&[u8]> {
    path.as_os_str().as_encoded_bytes().strip_prefix(b"@")
}

pub(super) fn address(path: &Path) -> io::Result<SocketAddrUnix> {
    Ok(match abstract_name(path) {
        Some(name) => SocketAddrUnix::new_abstract_name(name)?,
        None => SocketAddrUnix::new(path)?,
    })
}

pub(super) fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

/// Connects to the socket at `path`; fails at once if no process listens. The exporter may send
/// descriptors.
///
/// # Errors
/// The error of socket(2) or connect(2).
pub fn connect(path: &Path) -> io::Result<Socket> {
    let fd = UntrustedFd::socket(socket()?, rustix::process::geteuid().as_raw());
    rustix::net::connect(&fd, &address(path)?)?;
    let uid = peer_uid(&fd);
    let fd = fd.of_user(uid);
    if !may_connect(uid) {
        return Err(io::Error::other(too_many_parked(uid)));
    }
    Ok(Socket { fd, takes_descriptors: true })
}

impl Socket {
    /// A connection that a listener accepted. The reader may send no descriptors.
    pub(super) fn accepted(fd: OwnedFd) -> Self {
        let uid = peer_uid(&fd);
        Self { fd: UntrustedFd::socket(fd, uid), takes_descriptors: false }
    }

    /// Sends one packet.
    ///
    /// # Errors
    /// The error of sendmsg(2): `WouldBlock` if the peer does not receive fast enough.
    pub fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(&self.fd, &[IoSlice::new(packet)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the connection, while the socket stays open: the peer receives earlier packets, then
    /// the end.
    pub fn shut_down(&self) {
        // It fails if the peer has closed already.
        let _ = shutdown(&self.fd, Shutdown::Both);
    }

    /// Receives one packet, if one has arrived. Called by one thread at a time.
    ///
    /// # Errors
    ///
    /// `InvalidData` if the packet breaks the protocol; it then stays in the queue, with its
    /// descriptors.
    pub fn receive(&self) -> io::Result<Received> {
        let invalid = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text);
        // With MSG_TRUNC the kernel returns the packet's own length. MSG_CTRUNC shows descriptors
        // without receiving one.
        let peek = RecvFlags::PEEK | RecvFlags::TRUNC;
        let (length, descriptors) = match self.take(&mut [], &mut RecvAncillaryBuffer::default(), peek) {
            Ok(message) => (message.bytes, message.flags.contains(ReturnFlags::CTRUNC)),
            Err(Errno::AGAIN) => return Ok(Received::Nothing),
            Err(error) => return Err(error.into()),
        };
        if length == 0 && !descriptors {
            return Ok(Received::HungUp);
        }
        if descriptors && !self.takes_descriptors {
            return Err(invalid("it sent file descriptors, which only exporters do"));
        }
        if length > MAX_MESSAGE {
            return Err(invalid("a message longer than the protocol allows"));
        }
        let mut packet = vec![0; length];
        let fds = if descriptors { self.descriptors()? } else { Vec::new() };
        self.take(&mut packet, &mut RecvAncillaryBuffer::default(), RecvFlags::empty())?;
        Ok(Received::Packet(packet, fds))
    }

    /// Returns duplicates of the descriptors of the next packet, which stays in the queue. When a
    /// packet is received, the kernel closes descriptors that do not fit in the calling thread;
    /// with the duplicates held, no such close is the last one.
    fn descriptors(&self) -> io::Result<Vec<UntrustedFd>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let message = self.take(&mut [], &mut control, RecvFlags::PEEK)?;
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(some) = part {
                fds.extend(some.map(|fd| UntrustedFd::received(fd, self.fd.uid())));
            }
        }
        if !message.flags.contains(ReturnFlags::CTRUNC) {
            return Ok(fds);
        }
        Err(if fds.len() >= MAX_FDS {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "a message with more descriptors than the protocol allows",
            )
        } else {
            io::Error::other(
                "file descriptors that came could not be taken: raise this process's limit of open files (ulimit -n)",
            )
        })
    }

    fn take(
        &self,
        packet: &mut [u8],
        control: &mut RecvAncillaryBuffer<'_>,
        flags: RecvFlags,
    ) -> Result<RecvMsg, Errno> {
        let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        loop {
            match recvmsg(&self.fd, &mut [IoSliceMut::new(packet)], control, flags) {
                // The peer closed with unreceived messages: reported once, ahead of its earlier
                // packets.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                done => return done,
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
