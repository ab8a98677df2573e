//! Sleeping until something happens, and waking who sleeps.

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{Errno, read, write},
    net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair, sockopt},
    thread::{current_timer_slack, set_current_timer_slack},
};
use std::{
    io,
    num::NonZeroU64,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Ends every wait of this process that was given it, until it is cleared. Clones are one and the same.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<Flag>);

#[derive(Debug)]
struct Flag {
    /// The lock keeps flag and event together: set or not, both say the same.
    raised: Mutex<bool>,
    event: OwnedFd,
}

impl Interrupt {
    /// An interrupt that is not set.
    pub fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(Flag { raised: Mutex::new(false), event })))
    }

    /// Ends the waits that are under way and those to come.
    pub fn set(&self) {
        let mut raised = self.raised();
        if !std::mem::replace(&mut *raised, true) {
            // The counter cannot overflow: it is written once between two reads.
            let _ = write(&self.0.event, &1u64.to_ne_bytes());
        }
    }

    /// Lets waits sleep again.
    pub fn clear(&self) {
        let mut raised = self.raised();
        if std::mem::replace(&mut *raised, false) {
            let _ = read(&self.0.event, &mut [0; 8]);
        }
    }

    /// Whether it is set.
    pub fn is_set(&self) -> bool {
        *self.raised()
    }

    /// Whether the other is a clone of it.
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

/// One end of a socket pair over which two processes wake each other.
///
/// Each side owns an end of its own: of an eventfd, which both would own, a peer could clear O_NONBLOCK or fill
/// the counter and so make the other side block.
#[derive(Debug)]
pub struct Wake(OwnedFd);

impl Wake {
    /// Both ends.
    pub fn pair() -> io::Result<(Self, OwnedFd)> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        Ok((Self(ours), theirs))
    }

    /// The end that a peer sent; an error if it is not one of a pair of local sockets.
    pub fn from_peer(fd: OwnedFd) -> io::Result<Self> {
        let is_local = sockopt::socket_domain(&fd).is_ok_and(|domain| domain == AddressFamily::UNIX);
        // An unconnected or listening socket has no peer.
        if is_local
            && sockopt::socket_type(&fd)? == SocketType::STREAM
            && rustix::net::getpeername(&fd).is_ok()
        {
            return Ok(Self(fd));
        }
        Err(io::Error::new(io::ErrorKind::InvalidData, "the descriptor to be woken by is no local socket"))
    }

    /// Wakes the other side. Never blocks: a full socket wakes as well as a fuller one would.
    pub fn ring(&self) {
        let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// Takes the wake-ups that have come. False if no more can come: the other side has closed its end, or half of it.
    pub fn drain(&self) -> bool {
        // One read takes all that an honest peer sent; what a flooding one sent more is taken the next time.
        match recv(&self.0, &mut [0u8; 256], RecvFlags::DONTWAIT) {
            Ok((_, bytes)) => bytes > 0,
            Err(error) => matches!(error, Errno::AGAIN | Errno::INTR),
        }
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// When a wait ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timeout {
    /// Never.
    Never,
    /// At a moment.
    At(Instant),
}

impl Timeout {
    /// After a duration, counted from now; `None` is never.
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

    /// Whether the moment has come.
    pub fn is_over(self) -> bool {
        matches!(self, Self::At(at) if Instant::now() >= at)
    }
}

/// Sleeps until one of the descriptors is ready (for what is asked of it, or because it hung up) or time is over.
/// Sets each one's `revents`; all stay empty when time was over first.
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

/// The kernel ends sleeps up to 50 µs late, unless told otherwise: shorter ones than this are meant.
const SHORT: Duration = Duration::from_micros(500);

/// While it lives, the sleeps of this thread end when they should. The thread is someone else's: it gets back what it had.
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

/// Whether a poll found anything at a descriptor.
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

    #[test]
    fn a_flood_of_wake_ups_blocks_nobody() {
        let (ours, theirs) = Wake::pair().unwrap();
        let theirs = Wake::from_peer(theirs).unwrap();
        for _ in 0..1_000_000 {
            theirs.ring();
        }
        assert!(ours.drain());
    }

    #[test]
    fn an_end_that_was_closed_or_half_closed_is_told_from_a_quiet_one() {
        let (ours, theirs) = Wake::pair().unwrap();
        assert!(ours.drain());
        rustix::net::shutdown(&theirs, rustix::net::Shutdown::Write).unwrap();
        assert!(!ours.drain());
        let (ours, theirs) = Wake::pair().unwrap();
        drop(theirs);
        assert!(!ours.drain());
    }

    #[test]
    fn only_one_end_of_a_pair_of_sockets_can_be_woken_by() {
        let socket = |family, kind| rustix::net::socket(family, kind, None).unwrap();
        assert!(Wake::from_peer(rustix::pipe::pipe().unwrap().0).is_err());
        assert!(Wake::from_peer(socket(AddressFamily::UNIX, SocketType::STREAM)).is_err());
        assert!(Wake::from_peer(socket(AddressFamily::UNIX, SocketType::DGRAM)).is_err());
        assert!(Wake::from_peer(socket(AddressFamily::INET, SocketType::STREAM)).is_err());
    }
}
