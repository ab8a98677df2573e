//! Waits and wake-ups.

use super::{foreign::Foreign, peer::refuse_descriptors, socket::SCM_MAX_FD};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{Errno, read, write},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
        SocketFlags, SocketType, recvmsg, send, socketpair, sockopt,
    },
    thread::{current_timer_slack, set_current_timer_slack},
};
use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    num::NonZeroU64,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Ends all waits of this process that use it, until it is cleared. Clones share one state.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<Flag>);

#[derive(Debug)]
struct Flag {
    /// The lock keeps flag and event consistent.
    raised: Mutex<bool>,
    event: OwnedFd,
}

impl Interrupt {
    /// An interrupt that is not set.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Flag { raised: Mutex::new(false), event })))
    }

    /// Ends present and future waits.
    pub fn set(&self) {
        let mut raised = self.raised();
        if !std::mem::replace(&mut *raised, true) {
            // The counter cannot overflow: it is written once between two reads.
            let _ = write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    /// Allows waits again.
    pub fn clear(&self) {
        let mut raised = self.raised();
        if std::mem::replace(&mut *raised, false) {
            let _ = read(&self.0.event, &mut [0; 8]);
        }
    }

    /// Returns whether it is set.
    pub fn is_set(&self) -> bool {
        *self.raised()
    }

    /// Returns whether the other is a clone of it.
    pub fn is_the_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    fn raised(&self) -> MutexGuard<'_, bool> {
        self.0.raised.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

/// One end of a socket pair over which two processes send each other wake-ups.
///
/// Each side owns its own end. With a shared eventfd a peer could clear O_NONBLOCK or fill the
/// counter and so make the other side block. SEQPACKET, since a byte of a stream socket can be sent
/// out of band, and is then dropped by the kernel in the reading thread, with its descriptors.
#[derive(Debug)]
pub struct Wake {
    socket: Foreign,
    /// Whether the kernel refuses descriptors at their sender.
    refuses_descriptors: bool,
    /// Whether this process made the pair: then no other process can read from this end.
    is_own: bool,
}

/// The outcome of [`Wake::drain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drained {
    /// Further wake-ups can arrive.
    Open,
    /// The peer has closed its end, or half of it.
    Closed,
    /// The peer sent a descriptor.
    Descriptor,
}

/// The reason of evicting a peer that sent a descriptor over its wake-up socket.
pub const SENT_OVER_WAKE: &str = "it sent file descriptors over its wake socket";

impl Wake {
    /// Makes a pair; the second end is for a process of user `uid`.
    pub fn pair(uid: u32) -> io::Result<(Self, Foreign)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let (socket, theirs) = (Foreign::socket(ours, uid), Foreign::lent(theirs, uid));
        // A peer need not have received its end to send through it.
        refuse_descriptors(&theirs);
        let refuses_descriptors = refuse_descriptors(&socket);
        Ok((Self { socket, refuses_descriptors, is_own: true }, theirs))
    }

    /// The end that a peer sent; an error if it is not one of a pair of Unix sockets.
    pub fn from_peer(fd: Foreign) -> io::Result<Self> {
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
                fds.for_each(|fd| drop(Foreign::received(fd, self.socket.uid())));
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

/// The deadline of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// No deadline.
    Never,
    /// A time.
    At(Instant),
}

impl Timeout {
    /// A time `duration` from now; `None` is no deadline.
    pub fn after(duration: Option<Duration>) -> Self {
        duration.and_then(|duration| Instant::now().checked_add(duration)).map_or(Self::Never, Self::At)
    }

    /// The earlier of the two.
    pub fn min(self, other: Self) -> Self {
        match (self, other) {
            (Self::At(a), Self::At(b)) => Self::At(a.min(b)),
            (Self::At(at), Self::Never) | (Self::Never, Self::At(at)) => Self::At(at),
            (Self::Never, Self::Never) => Self::Never,
        }
    }

    /// Returns whether the deadline has passed.
    pub fn is_over(self) -> bool {
        matches!(self, Self::At(at) if Instant::now() >= at)
    }
}

/// Sleeps until one of the descriptors is ready (for its events, or because of a hang-up) or the
/// deadline has passed. Sets each one's `revents`; all stay empty on timeout.
pub fn wait(fds: &mut [PollFd<'_>], timeout: Timeout) -> io::Result<()> {
    loop {
        let left = match timeout {
            Timeout::Never => None,
            Timeout::At(at) => Some(at.saturating_duration_since(Instant::now())),
        };
        let _fine = left.filter(|left| !left.is_zero() && *left < SHORT).and_then(|_| FineTimer::new());
        let left = left.map(|left| Timespec {
            tv_sec: left.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(fds, left.as_ref()) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => fds.iter_mut().for_each(PollFd::clear_revents),
            Err(error) => return Err(error.into()),
        }
    }
}

/// The kernel ends sleeps up to 50 µs late by default: shorter sleeps than this need a finer timer.
const SHORT: Duration = Duration::from_micros(500);

/// Guard of a finer timer slack for this thread. Dropping it restores the former one.
struct FineTimer {
    before: Option<NonZeroU64>,
}

impl FineTimer {
    fn new() -> Option<Self> {
        let before = current_timer_slack().ok()?;
        set_current_timer_slack(NonZeroU64::new(1)).ok()?;
        Some(Self { before: NonZeroU64::new(before) })
    }
}

impl Drop for FineTimer {
    fn drop(&mut self) {
        let _ = set_current_timer_slack(self.before);
    }
}

/// Returns whether a poll found an event at a descriptor.
pub fn is_ready(fd: &PollFd<'_>) -> bool {
    fd.revents() != PollFlags::empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_waits_until_it_is_cleared() {
        let interrupt = Interrupt::new().unwrap();
        let ready = |timeout| {
            let mut fds = [PollFd::new(&interrupt, PollFlags::IN)];
            wait(&mut fds, Timeout::after(Some(timeout))).unwrap();
            is_ready(&fds[0])
        };
        assert!(!ready(Duration::ZERO));
        interrupt.set();
        interrupt.set();
        assert!(ready(Duration::from_secs(60)) && interrupt.is_set());
        interrupt.clear();
        assert!(!ready(Duration::ZERO) && !interrupt.is_set());
    }

    #[test]
    fn an_interrupt_is_never_lost_between_two_threads() {
        let interrupt = Interrupt::new().unwrap();
        let rounds = 20_000;
        std::thread::scope(|scope| {
            scope.spawn(|| (0..rounds).for_each(|_| interrupt.set()));
            scope.spawn(|| (0..rounds).for_each(|_| interrupt.clear()));
        });
        let mut fds = [PollFd::new(&interrupt, PollFlags::IN)];
        wait(&mut fds, Timeout::after(Some(Duration::ZERO))).unwrap();
        assert_eq!(is_ready(&fds[0]), interrupt.is_set());
    }

    const UID: u32 = 4_000_000;

    /// One end for each side, as an exporter and its reader have them.
    fn pair() -> (Wake, Wake) {
        let (ours, theirs) = Wake::pair(UID).unwrap();
        (ours, Wake::from_peer(theirs).unwrap())
    }

    #[test]
    fn a_flood_of_wake_ups_blocks_nobody() {
        let (ours, theirs) = pair();
        for _ in 0..100_000 {
            theirs.ring();
        }
        assert_eq!(ours.drain(), Drained::Open);
    }

    #[test]
    fn an_end_that_was_closed_or_half_closed_is_told_from_a_quiet_one() {
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
    fn only_one_end_of_a_pair_of_sockets_can_be_woken_by() {
        let from_peer = |fd| Wake::from_peer(Foreign::received(fd, UID));
        let socket = |family, kind| rustix::net::socket(family, kind, None).unwrap();
        assert!(from_peer(rustix::pipe::pipe().unwrap().0).is_err());
        assert!(from_peer(socket(AddressFamily::UNIX, SocketType::SEQPACKET)).is_err());
        assert!(from_peer(socket(AddressFamily::UNIX, SocketType::DGRAM)).is_err());
        assert!(from_peer(socket(AddressFamily::INET, SocketType::STREAM)).is_err());
    }
}
