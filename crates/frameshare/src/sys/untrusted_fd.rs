// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors whose close can block for as long as a peer likes, and the threads that close them.
//!
//! close(2) of a TCP socket with SO_LINGER and unsent data waits for its peer, of a FUSE file for
//! the file system's server, and of a Unix socket for all descriptors that lie unread in its queue.
//! Before Linux 6.8 the close of any Unix socket may also collect in-flight descriptors of other
//! processes in the calling thread. Such descriptors are [`UntrustedFd`] by type, so that no code
//! path, error paths and panics included, closes one in a thread that serves anyone.
//!
//! # Safety
//!
//! An [`UntrustedFd`] owns its descriptor until it is dropped, which takes the descriptor out once.
#![allow(unsafe_code)]

use super::PerProcess;
use rustix::{
    fs::fcntl_get_seals,
    net::{Shutdown, shutdown},
};
use std::{
    collections::{BTreeMap, VecDeque},
    mem::ManuallyDrop,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Maximum number of descriptors that wait for their close or are being closed: in this process,
/// and of one user. Beyond either, no further connection is taken; what is open already is still
/// parked.
const MAX_PARKED: usize = 1024;
const MAX_PARKED_OF_USER: usize = 256;
/// Time that a closer thread waits for another descriptor before it ends.
const IDLE: Duration = Duration::from_millis(200);
/// Stack size of a closer thread in bytes: it only calls close(2).
const STACK: usize = 64 * 1024;

/// Kind of a [`UntrustedFd`], which decides how the dropping thread may treat it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Received from a peer: only fcntl(F_GET_SEALS), which no file system implements itself, is
    /// known not to block.
    Received,
    /// A Unix socket that only this process reads. It is shut down, so that the peer sees the end
    /// at once.
    Socket,
    /// A Unix socket that a peer has, too, and continues to use.
    Lent,
}

/// A descriptor that is never closed by the thread that drops it, unless it is known to be a memory
/// file.
#[derive(Debug)]
pub struct UntrustedFd {
    fd: ManuallyDrop<OwnedFd>,
    uid: u32,
    kind: Kind,
}

impl UntrustedFd {
    fn new(fd: OwnedFd, uid: u32, kind: Kind) -> Self {
        Self { fd: ManuallyDrop::new(fd), uid, kind }
    }

    /// A descriptor of any kind that a process of user `uid` sent.
    pub fn received(fd: OwnedFd, uid: u32) -> Self {
        Self::new(fd, uid, Kind::Received)
    }

    /// A Unix socket in whose queue a process of user `uid` can leave descriptors.
    pub fn socket(fd: OwnedFd, uid: u32) -> Self {
        Self::new(fd, uid, Kind::Socket)
    }

    /// The end of a socket pair that is handed over to a process of user `uid`.
    pub fn lent(fd: OwnedFd, uid: u32) -> Self {
        Self::new(fd, uid, Kind::Lent)
    }

    /// Converts it to a socket that is shut down when it is dropped. The caller has checked that it
    /// is a Unix socket: shutdown(2) of others may block.
    pub(super) fn into_socket(mut self) -> Self {
        self.kind = Kind::Socket;
        self
    }

    /// Counts the descriptor for another user.
    pub(super) fn of_user(mut self, uid: u32) -> Self {
        self.uid = uid;
        self
    }

    /// The user whose process can make its close block.
    pub fn uid(&self) -> u32 {
        self.uid
    }
}

impl AsFd for UntrustedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for UntrustedFd {
    fn drop(&mut self) {
        // SAFETY: `self.fd` is not used after this.
        let fd = unsafe { ManuallyDrop::take(&mut self.fd) };
        match self.kind {
            // Only memory files have seals (fcntl(2)): their close involves no other party.
            Kind::Received if fcntl_get_seals(&fd).is_ok() => return drop(fd),
            // It fails if the peer has closed already.
            Kind::Socket => drop(shutdown(&fd, Shutdown::Both)),
            Kind::Received | Kind::Lent => {}
        }
        CLOSERS.get().park(fd, self.uid);
    }
}

/// Returns whether this process may accept any further connection: one that is refused may have to
/// be parked, too.
pub fn may_accept() -> bool {
    CLOSERS.lock().total < MAX_PARKED
}

/// Returns whether this process may serve another connection of a user.
pub fn may_connect(uid: u32) -> bool {
    let state = CLOSERS.lock();
    state.total < MAX_PARKED && state.of_user.get(&uid).is_none_or(|count| *count < MAX_PARKED_OF_USER)
}

/// The refusal text when [`may_connect`] is false.
pub fn too_many_parked(uid: u32) -> String {
    format!(
        "too many descriptors that user {uid} sent cannot be closed; end the processes that keep them open"
    )
}

static CLOSERS: PerProcess<Closers> = PerProcess::new(Closers::default);

/// The closer threads: one for each close that blocks, and one more.
#[derive(Default)]
struct Closers {
    state: Mutex<State>,
    /// Notified when a descriptor is parked.
    parked: Condvar,
}

#[derive(Default)]
struct State {
    /// Parked descriptors without a thread, and the users that they count for.
    queue: VecDeque<(OwnedFd, u32)>,
    /// Number of parked descriptors, those that are being closed included, of each user.
    of_user: BTreeMap<u32, usize>,
    total: usize,
    threads: usize,
    /// Threads that wait for a descriptor.
    idle: usize,
    /// A thread was started that has not run yet.
    starting: bool,
}

impl State {
    /// Returns whether a further thread must be started now. True reserves its place.
    fn needs_thread(&mut self) -> bool {
        let needed = self.queue.len() > self.idle && !self.starting && self.threads < MAX_PARKED;
        if needed {
            self.starting = true;
            self.threads += 1;
        }
        needed
    }

    fn forget(&mut self, uid: u32) {
        self.total -= 1;
        if let Some(count) = self.of_user.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&uid);
            }
        }
    }
}

impl Closers {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn park(&'static self, fd: OwnedFd, uid: u32) {
        let mut state = self.lock();
        state.queue.push_back((fd, uid));
        *state.of_user.entry(uid).or_default() += 1;
        state.total += 1;
        let needs_thread = state.needs_thread();
        drop(state);
        self.parked.notify_one();
        if needs_thread {
            self.start();
        }
    }

    fn start(&'static self) {
        let builder = thread::Builder::new().name("frameshare-close".into()).stack_size(STACK);
        if builder.spawn(|| self.run()).is_err() {
            // The descriptor stays open and queued: the next one that is parked, or closed,
            // requests a thread again.
            let mut state = self.lock();
            state.starting = false;
            state.threads -= 1;
        }
    }

    fn run(&'static self) {
        let mut state = self.lock();
        state.starting = false;
        loop {
            let Some((fd, uid)) = state.queue.pop_front() else {
                state.idle += 1;
                let waited = self.parked.wait_timeout(state, IDLE);
                let timeout;
                (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                if timeout.timed_out() && state.queue.is_empty() {
                    state.threads -= 1;
                    return;
                }
                continue;
            };
            // This close may never return: another thread takes the next one.
            let needs_thread = state.needs_thread();
            drop(state);
            if needs_thread {
                self.start();
            }
            drop(fd);
            state = self.lock();
            state.forget(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Wake, memfd, testing::wait_until};
    use frameshare_process::testing::in_child;
    use rustix::{
        event::{PollFd, PollFlags, Timespec, poll},
        net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg, sockopt::set_socket_linger},
    };
    use std::{
        cell::RefCell,
        io::{IoSlice, Write},
        mem::MaybeUninit,
        net::{TcpListener, TcpStream},
        sync::mpsc::channel,
    };

    /// A socket whose close takes an hour, and the peer that causes it.
    fn lingering() -> (OwnedFd, (TcpListener, TcpStream)) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let unread = listener.accept().unwrap().0;
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 65536]).is_ok() {}
        set_socket_linger(&stream, Some(Duration::from_secs(3600))).unwrap();
        (stream.into(), (listener, unread))
    }

    /// Returns whether `f` returns although it drops a descriptor whose close blocks.
    fn returns(f: impl FnOnce() + Send + 'static) -> bool {
        let (done, is_done) = channel();
        thread::spawn(move || {
            f();
            done.send(())
        });
        is_done.recv_timeout(Duration::from_secs(30)).is_ok()
    }

    fn parked_of(uid: u32) -> usize {
        CLOSERS.lock().of_user.get(&uid).copied().unwrap_or(0)
    }

    #[test]
    fn blocked_closes_stop_no_others_until_user_limit() {
        const UID: u32 = 4_000_001;
        let (socket, keep) = lingering();
        // Each is the last descriptor of its socket.
        let kept = RefCell::new(vec![keep]);
        let park = || {
            let (socket, keep) = lingering();
            kept.borrow_mut().push(keep);
            drop(UntrustedFd::received(socket, UID));
        };
        assert!(returns(move || drop(UntrustedFd::received(socket, UID))));
        (1..20).for_each(|_| park());
        wait_until("the others are closed", || {
            let (ours, theirs) = rustix::pipe::pipe().unwrap();
            drop(UntrustedFd::received(theirs, UID + 1));
            wait_until("it is closed", || parked_of(UID + 1) == 0);
            let are_parked = parked_of(UID) >= 20;
            if !are_parked {
                // The child of a test that forked has a copy of one: its close does not block.
                park();
            }
            rustix::io::read(&ours, &mut [0_u8; 1]) == Ok(0) && are_parked
        });
        assert!(may_connect(UID));
        while parked_of(UID) < MAX_PARKED_OF_USER {
            park();
        }
        assert!(!may_connect(UID) && may_connect(UID + 1));
        // A peer that closes ends the wait.
        drop(kept);
        wait_until("all are closed", || parked_of(UID) == 0);
        assert!(may_connect(UID));
    }

    /// A child has none of its parent's closer threads.
    #[test]
    fn forked_child_closes_parked_descriptor() {
        const UID: u32 = 4_000_005;
        let (socket, keep) = lingering();
        drop(UntrustedFd::received(socket, UID));
        wait_until("its close blocks", || CLOSERS.lock().queue.is_empty());
        // As if a closer thread held the lock at the fork.
        let locked = CLOSERS.lock();
        let child = || {
            let (ours, theirs) = rustix::pipe::pipe().unwrap();
            drop(UntrustedFd::received(theirs, UID));
            wait_until("it is closed", || parked_of(UID) == 0);
            rustix::io::read(&ours, &mut [0_u8; 1]) == Ok(0)
        };
        assert_eq!(in_child(child), Some(true));
        drop((locked, keep));
    }

    #[test]
    fn memory_file_is_closed_by_dropping_thread() {
        const UID: u32 = 4_000_003;
        drop(UntrustedFd::received(memfd("test", 4096).unwrap(), UID));
        assert_eq!(parked_of(UID), 0);
    }

    #[test]
    fn dropped_socket_with_blocking_queue_hangs_up_at_once() {
        const UID: u32 = 4_000_004;
        let (ours, theirs) = Wake::pair(UID).unwrap();
        // As on a kernel without SO_PASSRIGHTS.
        crate::sys::peer::take_descriptors(&theirs);
        let (socket, _keep) = lingering();
        let fds = [socket.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        sendmsg(&ours, &[IoSlice::new(&[1])], &mut control, SendFlags::DONTWAIT).unwrap();
        drop(socket);
        assert!(returns(move || drop(theirs.into_socket())));
        let mut fds = [PollFd::new(&ours, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 30, tv_nsec: 0 })).unwrap();
        assert!(fds[0].revents().contains(PollFlags::HUP));
    }
}
