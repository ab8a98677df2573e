//! Descriptors in flight: sent to a reader and not received by it.
//!
//! The kernel counts them against the sender's user and refuses further ones beyond `RLIMIT_NOFILE` (unix(7), ETOOMANYREFS).
//! Closing a connection does not free them: they stay in flight until the reader receives them or closes its end. They are
//! therefore counted for this whole process and for each user, also those of closed connections, and users that leave too
//! many unreceived are refused.

use crate::sys::{Socket, file_limit, unreceived};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// Maximum time between two checks of closed connections.
pub(super) const CHECK: Duration = Duration::from_secs(1);

static CONNECTIONS: Mutex<Connections> = Mutex::new(Connections { open: Vec::new(), closed: Vec::new() });

/// The connections of this process to readers.
struct Connections {
    open: Vec<Arc<Connection>>,
    /// Those whose readers have neither received everything nor closed their ends.
    closed: Vec<Arc<Connection>>,
}

#[derive(Debug)]
struct Connection {
    socket: Arc<Socket>,
    uid: u32,
    /// Descriptors that were sent since the reader was last known to have received everything.
    count: AtomicUsize,
}

impl Connection {
    fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    /// Asks the kernel whether the reader has received everything.
    fn has_received_all(&self) -> bool {
        let all = unreceived(&*self.socket).is_ok_and(|bytes| bytes == 0);
        if all {
            self.count.store(0, Relaxed);
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
pub(super) struct InFlight(Arc<Connection>);

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
            connections.closed.push(self.0.clone());
        }
    }
}

/// Forgets closed connections whose readers have received everything or closed their ends. Returns whether any is left.
pub(super) fn check() -> bool {
    let (gone, is_any_left) = {
        let mut connections = Connections::lock();
        let gone: Vec<_> =
            connections.closed.extract_if(.., |connection| connection.has_received_all()).collect();
        (gone, !connections.closed.is_empty())
    };
    // Sockets are closed without the lock.
    drop(gone);
    is_any_left
}

/// An upper bound of the descriptors in flight of this process.
pub(super) fn total() -> usize {
    Connections::lock().total()
}

/// Whether a further reader of user `uid` may join. Closed connections of a user may keep a quarter of `RLIMIT_NOFILE` in
/// flight. From three quarters in all on, users that keep any may not join.
pub(super) fn may_join(uid: u32) -> bool {
    check();
    let limit = file_limit().map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    Connections::lock().may_join(uid, limit)
}

/// The text that refuses a reader when [`may_join`] is false.
pub(super) fn too_many(uid: u32) -> String {
    format!(
        "user {uid} leaves too many descriptors unreceived: end its processes that connect and do not read, or raise \
         the exporter's limit (ulimit -n)"
    )
}
