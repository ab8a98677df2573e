// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors in flight: sent to a reader and not received by it.
//!
//! The kernel counts them against the sender's user and refuses further ones beyond `RLIMIT_NOFILE`
//! (unix(7), ETOOMANYREFS). Closing a connection does not free them: they stay in flight until the
//! reader receives them or closes its end. They are therefore counted for this whole process and
//! for each user, also those of closed connections, and users that leave too many unreceived are
//! refused.

use crate::sys::{Socket, file_limit, unreceived};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

/// Maximum of this process, where the kernel allows more: each closed connection takes a file,
/// memory, and time to check.
const MAX: usize = 4096;
/// The shortest and the longest pause between two checks of closed connections.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(500);
/// Stack size in bytes of the thread that checks them.
const STACK: usize = 64 * 1024;

static CONNECTIONS: Mutex<Connections> =
    Mutex::new(Connections { open: Vec::new(), closed: Vec::new(), is_watched: false });

/// The connections of this process to readers.
struct Connections {
    open: Vec<Arc<Connection>>,
    /// Those whose readers have neither received everything nor closed their ends.
    closed: Vec<Arc<Connection>>,
    /// A thread checks the closed ones.
    is_watched: bool,
}

#[derive(Debug)]
struct Connection {
    socket: Arc<Socket>,
    uid: u32,
    /// Descriptors that were sent since the reader was last known to have received everything; one
    /// more for the socket of a closed connection.
    count: AtomicUsize,
}

impl Connection {
    fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Asks the kernel whether the reader has received everything.
    fn has_received_all(&self) -> bool {
        let before = self.count();
        let all = unreceived(&*self.socket).is_ok_and(|bytes| bytes == 0);
        if all {
            // Descriptors that another thread has sent in between still count.
            let _ = self.count.compare_exchange(before, 0, Relaxed, Relaxed);
        }
        all
    }
}

impl Connections {
    fn lock() -> MutexGuard<'static, Self> {
        CONNECTIONS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.open.iter().chain(&self.closed)
    }

    fn total(&self) -> usize {
        self.all().map(|connection| connection.count()).sum()
    }

    fn may_join(&self, uid: u32, limit: usize) -> bool {
        let of_user = |connection: &&Arc<Connection>| connection.uid == uid;
        let closed: usize = self.closed.iter().filter(of_user).map(|connection| connection.count()).sum();
        let most = limit / 4 * 3;
        if closed >= limit / 4 {
            return false;
        }
        if self.total() >= most {
            self.open.iter().for_each(|connection| {
                connection.has_received_all();
            });
        }
        self.total() < most || self.all().filter(of_user).all(|connection| connection.count() == 0)
    }
}

/// The descriptors in flight on one connection. Dropping it shuts the connection down.
#[derive(Debug)]
pub struct InFlight(Arc<Connection>);

impl InFlight {
    /// Begins to count for a connection to a process of user `uid`.
    pub fn new(socket: Arc<Socket>, uid: u32) -> Self {
        let connection = Arc::new(Connection { socket, uid, count: AtomicUsize::new(0) });
        Connections::lock().open.push(connection.clone());
        Self(connection)
    }

    pub fn socket(&self) -> &Socket {
        &self.0.socket
    }

    pub fn add(&self, count: usize) {
        self.0.count.fetch_add(count, Relaxed);
    }

    /// An upper bound of their number.
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Asks the kernel whether the reader has received everything.
    pub fn has_received_all(&self) -> bool {
        self.0.has_received_all()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let keeps = self.count() > 0 && !self.has_received_all();
        // The list keeps the socket open; without a shutdown the reader would not notice the end.
        self.0.socket.shut_down();
        let mut connections = Connections::lock();
        connections.open.retain(|other| !Arc::ptr_eq(other, &self.0));
        if keeps {
            self.add(1);
            connections.closed.push(self.0.clone());
        }
        let starts = keeps && !connections.is_watched;
        connections.is_watched |= starts;
        drop(connections);
        let builder = thread::Builder::new().name("frameshare-flight".into()).stack_size(STACK);
        if starts && builder.spawn(watch).is_err() {
            // The next reader that joins, or connection that closes, has them checked.
            Connections::lock().is_watched = false;
        }
    }
}

/// Checks closed connections until none is left. They may outlive all exporters.
fn watch() {
    let mut pause = SHORTEST;
    loop {
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST);
        check();
        let mut connections = Connections::lock();
        connections.is_watched = !connections.closed.is_empty();
        if !connections.is_watched {
            return;
        }
    }
}

/// Forgets closed connections whose readers have received everything or closed their ends.
fn check() {
    let has_received_all = |connection: &mut Arc<Connection>| connection.has_received_all();
    let gone: Vec<_> = Connections::lock().closed.extract_if(.., has_received_all).collect();
    // Sockets are closed without the lock.
    drop(gone);
}

/// An upper bound of the descriptors in flight of this process.
pub fn total() -> usize {
    Connections::lock().total()
}

/// Whether a further reader of user `uid` may join. Closed connections of a user may keep a quarter
/// of `RLIMIT_NOFILE`, or of 4096, in flight. From three quarters in all on, users that keep any
/// may not join.
pub fn may_join(uid: u32) -> bool {
    let limit =
        file_limit().and_then(|limit| usize::try_from(limit).ok()).map_or(MAX, |limit| limit.min(MAX));
    let may_join = || Connections::lock().may_join(uid, limit);
    may_join() || {
        check();
        may_join()
    }
}

/// The text that refuses a reader when [`may_join`] is false.
pub fn too_many(uid: u32) -> String {
    format!(
        "user {uid} leaves too many descriptors unreceived: end its processes that connect and do not read, or raise \
         the exporter's limit (ulimit -n)"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::{Listener, connect, memfd};
    use std::{os::fd::AsFd, thread, time::Instant};

    #[test]
    fn closed_connection_is_kept_until_peer_closes() {
        const UID: u32 = 4_000_010;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let listener = Listener::bind(&path, 0o600).unwrap();
        let theirs = connect(&path).unwrap();
        let ours = Arc::new(listener.accept().unwrap().unwrap());
        let kept = Arc::downgrade(&ours);
        let in_flight = InFlight::new(ours, UID);
        let file = memfd("test", 4096).unwrap();
        in_flight.socket().send(b"message", &[file.as_fd()]).unwrap();
        in_flight.add(1);
        drop(in_flight);
        thread::sleep(Duration::from_millis(100));
        assert!(kept.upgrade().is_some());
        // No exporter runs here.
        drop(theirs);
        let end = Instant::now() + Duration::from_secs(30);
        while kept.strong_count() > 0 {
            assert!(Instant::now() < end, "the socket stays open");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
