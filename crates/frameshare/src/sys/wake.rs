// SPDX-License-Identifier: MIT OR Apache-2.0

//! Wake-ups between two processes.

use super::{
    futex::WakeGroup, peer::refuse_descriptors, quiet, socket::SCM_MAX_FD, untrusted_fd::UntrustedFd,
};
pub use frameshare_core::Drained;
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
        SocketFlags, SocketType, recvmsg, send, socketpair, sockopt,
    },
};
use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
};

/// One end of a socket pair over which two processes send each other wake-ups.
///
/// Each side owns its own end. With a shared eventfd a peer could clear O_NONBLOCK or fill the
/// counter and so make the other side block. SEQPACKET, since a byte of a stream socket can be sent
/// out of band, and is then dropped by the kernel in the reading thread, with its descriptors.
#[derive(Debug)]
pub struct Wake {
    socket: UntrustedFd,
    /// Whether the kernel refuses descriptors at their sender.
    refuses_descriptors: bool,
    /// Whether this process made the pair: then no other process can read from this end.
    is_own: bool,
}

impl Wake {
    /// Makes a pair; the second end is for a process of user `uid`.
    ///
    /// # Errors
    /// The error of socketpair(2).
    pub fn pair(uid: u32) -> io::Result<(Self, UntrustedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let (socket, theirs) = (UntrustedFd::socket(ours, uid), UntrustedFd::lent(theirs, uid));
        // A peer need not have received its end to send through it.
        refuse_descriptors(&theirs);
        let refuses_descriptors = refuse_descriptors(&socket);
        Ok((Self { socket, refuses_descriptors, is_own: true }, theirs))
    }

    /// The end that a peer sent.
    ///
    /// # Errors
    /// The reason, if it is not one of a pair of Unix sockets.
    pub fn from_peer(fd: UntrustedFd) -> io::Result<Self> {
        let is_local = sockopt::socket_domain(&fd).is_ok_and(|domain| domain == AddressFamily::UNIX);
        // An unconnected or listening socket has no peer.
        if is_local
            && sockopt::socket_type(&fd)? == SocketType::SEQPACKET
            && rustix::net::getpeername(&fd).is_ok()
        {
            let refuses_descriptors = refuse_descriptors(&fd);
            return Ok(Self { socket: fd.into_socket(), refuses_descriptors, is_own: false });
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the descriptor to be woken by is no local socket"))
    }

    /// Sends a wake-up. Never blocks. EAGAIN is ignored: a pending packet already wakes the peer.
    pub fn ring(&self) {
        quiet::check();
        let _ = send(&self.socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Receives a wake-up. One system call if the kernel has SO_PASSRIGHTS (Linux 6.16), else two.
    pub fn drain(&self) -> Drained {
        // Check for descriptors before receiving the packet: the kernel would close descriptors
        // without room in this thread. A peek leaves them in the queue, and MSG_CTRUNC shows them.
        if !self.refuses_descriptors {
            let peeked = self.receive(&mut [], RecvFlags::PEEK);
            if peeked.is_ok_and(|(_, descriptors)| descriptors) {
                return Drained::Descriptor;
            }
        }
        // A peer that made the pair may have kept this end, too, and have received the peeked
        // packet.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let room = if self.is_own { &mut [][..] } else { &mut space };
        match self.receive(room, RecvFlags::empty()) {
            Ok((_, true)) => Drained::Descriptor,
            Ok((0, false)) => Drained::Closed,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Drained::Open,
            Err(_) => Drained::Closed,
        }
    }

    /// Returns the length of a packet, and whether it had descriptors. Received ones are parked.
    fn receive(&self, room: &mut [MaybeUninit<u8>], flags: RecvFlags) -> Result<(usize, bool), Errno> {
        let mut control = RecvAncillaryBuffer::new(room);
        let mut packet = [0; 8];
        let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut packet)], &mut control, flags)?;
        let mut descriptors = message.flags.contains(ReturnFlags::CTRUNC);
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                descriptors = true;
                fds.for_each(|fd| drop(UntrustedFd::received(fd, self.socket.uid())));
            }
        }
        Ok((message.bytes, descriptors))
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The object that a reader sleeps on.
#[derive(Debug)]
enum Sleeping {
    /// The futex of its group, which had so many readers.
    Group(Arc<WakeGroup>, u32),
    Socket(Arc<Wake>),
}

/// Sleeping readers that are to be woken, once no lock is held: a woken thread must not find it
/// locked.
#[derive(Debug, Default)]
#[must_use = "the readers sleep on until they are woken"]
pub struct Sleepers {
    /// Most streams have readers of one user, and so one thing to wake: it takes no allocation.
    first: Option<Sleeping>,
    further: Vec<Sleeping>,
}

impl Sleepers {
    /// Adds a reader that sleeps on its socket.
    pub fn add(&mut self, wake: &Arc<Wake>) {
        self.push(Sleeping::Socket(wake.clone()));
    }

    /// Adds a reader that sleeps on the futex of its group. One wake-up is for all of a group.
    pub fn add_group(&mut self, group: &Arc<WakeGroup>) {
        let is_it = |one: &Sleeping| matches!(one, Sleeping::Group(known, _) if Arc::ptr_eq(known, group));
        if !self.first.iter().chain(&self.further).any(is_it) {
            self.push(Sleeping::Group(group.clone(), group.readers()));
        }
    }

    fn push(&mut self, new: Sleeping) {
        if self.first.is_none() {
            self.first = Some(new);
        } else {
            self.further.push(new);
        }
    }

    /// Wakes them: one system call for each group and for each socket.
    pub fn wake(self) {
        self.first.iter().chain(&self.further).for_each(|one| match one {
            Sleeping::Group(group, readers) => group.wake(*readers),
            Sleeping::Socket(wake) => wake.ring(),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: u32 = 4_000_000;

    /// One end for each side, as an exporter and its reader have them.
    fn pair() -> (Wake, Wake) {
        let (ours, theirs) = Wake::pair(UID).unwrap();
        (ours, Wake::from_peer(theirs).unwrap())
    }

    #[test]
    fn flood_of_wake_ups_does_not_block() {
        let (ours, theirs) = pair();
        for _ in 0..100_000 {
            theirs.ring();
        }
        assert_eq!(ours.drain(), Drained::Open);
    }

    #[test]
    fn closed_or_half_closed_end_differs_from_quiet_one() {
        let (ours, theirs) = pair();
        assert_eq!(ours.drain(), Drained::Open);
        rustix::net::shutdown(&theirs, rustix::net::Shutdown::Write).unwrap();
        assert_eq!(ours.drain(), Drained::Closed);
        let (ours, theirs) = pair();
        drop(theirs);
        assert_eq!(ours.drain(), Drained::Closed);
    }

    /// Sends a descriptor from one end to the other.
    fn send_descriptor(from: &Wake) -> rustix::io::Result<usize> {
        let fds = [from.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        rustix::net::sendmsg(from, &[io::IoSlice::new(&[1])], &mut control, SendFlags::DONTWAIT)
    }

    #[test]
    fn descriptor_over_wake_socket_is_refused_or_reported() {
        let (mut ours, mut theirs) = pair();
        for end in [&mut ours, &mut theirs] {
            // As on a kernel without the option.
            super::super::peer::take_descriptors(&end.socket);
            end.refuses_descriptors = false;
        }
        for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
            from.ring();
            assert_eq!(send_descriptor(from), Ok(1));
            assert_eq!((to.drain(), to.drain()), (Drained::Open, Drained::Descriptor));
        }
        let (ours, theirs) = pair();
        assert_eq!(ours.refuses_descriptors, send_descriptor(&theirs) == Err(Errno::PERM));
        assert_eq!(theirs.refuses_descriptors, send_descriptor(&ours) == Err(Errno::PERM));
    }

    #[test]
    fn wake_up_descriptor_must_be_a_socket_pair_end() {
        let from_peer = |fd| Wake::from_peer(UntrustedFd::received(fd, UID));
        let socket = |family, kind| rustix::net::socket(family, kind, None).unwrap();
        assert!(from_peer(rustix::pipe::pipe().unwrap().0).is_err());
        assert!(from_peer(socket(AddressFamily::UNIX, SocketType::SEQPACKET)).is_err());
        assert!(from_peer(socket(AddressFamily::UNIX, SocketType::DGRAM)).is_err());
        assert!(from_peer(socket(AddressFamily::INET, SocketType::STREAM)).is_err());
    }
}
