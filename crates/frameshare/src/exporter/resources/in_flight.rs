// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors in flight: sent to a reader and not received by it.
//!
//! The kernel says how many bytes of a socket's packets are unreceived, and readers receive in
//! order: a packet has been received if no more bytes are unreceived than were sent after it.
//!
//! The kernel counts them against the sender's user and refuses further ones beyond `RLIMIT_NOFILE`
//! (unix(7), ETOOMANYREFS). Closing a connection does not free them: they stay in flight until the
//! reader receives them or closes its end. They are therefore counted for this whole process and
//! for each user, also those of closed connections, and users that leave too many unreceived are
//! refused.

use crate::sys::{PerProcess, Socket, file_limit, unreceived};
use std::{
    collections::VecDeque,
    io,
    os::fd::BorrowedFd,
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

static CONNECTIONS: PerProcess<Mutex<Connections>> = PerProcess::new(Mutex::default);

/// The connections of this process to readers.
#[derive(Default)]
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
    packets: Mutex<Packets>,
    /// Descriptors that were in flight when that was last checked, and those sent since; one more
    /// for the socket of a closed connection.
    count: AtomicUsize,
}

/// The packets of a connection, from the oldest one with descriptors in flight on.
#[derive(Debug, Default)]
struct Packets {
    /// Bytes that were sent, as the kernel counts them, and some that were before.
    sent: usize,
    /// Packets with descriptors: those bytes up to each one, and the number of its descriptors.
    with_descriptors: VecDeque<(usize, usize)>,
}

impl Packets {
    /// Records a packet with so many descriptors, and the unreceived bytes `before` and `after` it.
    ///
    /// If the reader received packets in between, their bytes are missing in the difference. Then
    /// packets count as in flight for longer, and none for too short a time.
    fn push(&mut self, descriptors: usize, before: usize, after: usize) {
        if self.with_descriptors.is_empty() {
            self.sent = before;
        }
        self.sent = (self.sent + after.saturating_sub(before)).max(after);
        if descriptors > 0 {
            self.with_descriptors.push_back((self.sent, descriptors));
        }
    }

    /// Forgets packets that were received, when so many bytes are not. Returns the number of their
    /// descriptors.
    fn take_received(&mut self, unreceived: usize) -> usize {
        let received = self.sent.saturating_sub(unreceived);
        let mut descriptors = 0;
        while let Some((end, count)) = self.with_descriptors.front()
            && (*end <= received || unreceived == 0)
        {
            descriptors += count;
            self.with_descriptors.pop_front();
        }
        descriptors
    }
}

impl Connection {
    fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    fn packets(&self) -> MutexGuard<'_, Packets> {
        self.packets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut packets = self.packets();
        if fds.is_empty() && packets.with_descriptors.is_empty() {
            return self.socket.send(packet, fds);
        }
        let before = unreceived(&*self.socket)?;
        self.socket.send(packet, fds)?;
        self.count.fetch_add(fds.len(), Relaxed);
        // Without the number the packet counts until the reader has received all.
        packets.push(fds.len(), before, unreceived(&*self.socket).unwrap_or(before));
        Ok(())
    }

    /// Asks the kernel what the reader has received. Returns whether that is everything.
    fn check(&self) -> bool {
        let mut packets = self.packets();
        let Ok(bytes) = unreceived(&*self.socket) else { return false };
        self.count.fetch_sub(packets.take_received(bytes), Relaxed);
        bytes == 0
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
            self.open.iter().for_each(|connection| _ = connection.check());
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
        let (packets, count) = (Mutex::default(), AtomicUsize::new(0));
        let connection = Arc::new(Connection { socket, uid, packets, count });
        Connections::lock().open.push(connection.clone());
        Self(connection)
    }

    /// Sends a packet, as [`Socket::send`] does.
    ///
    /// # Errors
    /// Those of [`Socket::send`].
    pub fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.0.send(packet, fds)
    }

    /// Their number at the last check, and those sent since.
    pub fn count(&self) -> usize {
        self.0.count()
    }

    /// Asks the kernel what the reader has received. Returns whether that is everything.
    pub fn check(&self) -> bool {
        self.0.check()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let keeps = self.count() > 0 && !self.check();
        // The list keeps the socket open; without a shutdown the reader would not notice the end.
        self.0.socket.shut_down();
        let mut connections = Connections::lock();
        connections.open.retain(|other| !Arc::ptr_eq(other, &self.0));
        if keeps {
            self.0.count.fetch_add(1, Relaxed);
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
    let is_over = |connection: &mut Arc<Connection>| connection.check();
    let gone: Vec<_> = Connections::lock().closed.extract_if(.., is_over).collect();
    // Sockets are closed without the lock.
    drop(gone);
}

/// The descriptors in flight of this process, as of the last check of each connection.
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
    use crate::sys::{Listener, Received, connect, memfd};
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
        in_flight.send(b"message", &[file.as_fd()]).unwrap();
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

    /// Both ends of a connection to a process of this user.
    fn pair(uid: u32) -> (InFlight, Socket, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        let listener = Listener::bind(&path, 0o600).unwrap();
        let theirs = connect(&path).unwrap();
        (InFlight::new(Arc::new(listener.accept().unwrap().unwrap()), uid), theirs, folder)
    }

    fn receive(socket: &Socket) {
        assert!(matches!(socket.receive().unwrap(), Received::Packet(..)));
    }

    /// The reader is never seen to have received everything.
    #[test]
    fn descriptors_in_flight_are_counted_packet_by_packet() {
        let (ours, theirs, _folder) = pair(4_000_011);
        let file = memfd("test", 4096).unwrap();
        let send = |length: usize, count: usize| {
            ours.send(&vec![0; length], &vec![file.as_fd(); count]).unwrap();
        };
        send(100, 0);
        for (length, count) in [(10, 1), (5000, 2), (1, 0), (40_000, 3)] {
            send(length, count);
        }
        let left = |received: usize| {
            (0..received).for_each(|_| receive(&theirs));
            assert!(!ours.check());
            ours.count()
        };
        assert_eq!((left(0), left(1), left(1), left(1), left(1)), (6, 6, 5, 3, 3));
        for _ in 0..100 {
            send(700, 1);
            assert_eq!(left(1), 1);
        }
        receive(&theirs);
        assert!(ours.check());
        assert_eq!(ours.count(), 0);
    }

    /// Packets that are received between the two questions to the kernel make others count for
    /// longer, and none for too short a time.
    #[test]
    fn reception_during_a_send_counts_nothing_too_early() {
        let mut packets = Packets::default();
        packets.push(1, 0, 100);
        packets.push(1, 100, 150);
        assert_eq!(packets.take_received(150), 0, "of 200 bytes, 50 are received: none as a whole");
        assert_eq!(packets.take_received(100), 0);
        packets.push(1, 100, 200);
        assert_eq!((packets.take_received(100), packets.take_received(0)), (2, 1));
    }
}
