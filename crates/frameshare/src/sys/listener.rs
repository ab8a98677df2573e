// SPDX-License-Identifier: MIT OR Apache-2.0

//! The listening socket of a stream, and its name in the file system.
//!
//! A stream is reached at the path of its socket. The [`Listener`] owns that path: by a lock file
//! beside the socket, which at most one process can lock, and by the socket's file. Both are found
//! through the folder's descriptor, so that a path that changes its meaning later leads nowhere
//! else. An abstract socket has no file: bind(2) itself is its lock.

use super::{
    PerProcess,
    name_lock::{NameLock, NameTaken},
    peer::{peer_pid, peer_uid, refuse_descriptors},
    socket::{FLAGS, Socket, abstract_name, address, socket},
    untrusted_fd::UntrustedFd,
};
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{AtFlags, FileType, Mode, OFlags, chmodat, fchmod, fstatfs, open, statat, unlinkat},
    io::Errno,
    net::{SocketAddrUnix, accept_with, bind, connect, listen},
};
use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, Weak},
    thread,
    time::{Duration, Instant},
};

/// Maximum number of connections that wait in the kernel to be accepted; the kernel lowers it to
/// net.core.somaxconn.
const BACKLOG: i32 = 1024;

/// File system in memory (`TMPFS_MAGIC`).
const TMPFS: u64 = 0x0102_1994;

/// Maximum wait for the close of an abstract socket that is shut down.
const CLOSING: Duration = Duration::from_secs(1);

/// The socket that readers connect to. Dropping it removes its file, then releases the name.
#[derive(Debug)]
pub struct Listener {
    /// Its queue holds waiting connections, and the packets sent over them.
    socket: Arc<UntrustedFd>,
    spare: Arc<Spare>,
    /// None for an abstract socket.
    // Dropped last: the next owner of the name finds no file of this one.
    file: Option<SocketFile>,
}

/// The file of a socket, and the lock that owns its name.
#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    mode: u32,
    place: Location,
    /// Device and inode.
    id: (u64, u64),
    lock: NameLock,
}

/// A descriptor of all listeners of this process: closed for a moment to accept and refuse a
/// connection when no descriptors are left.
#[derive(Debug)]
struct Spare(Mutex<Option<OwnedFd>>);

/// Location of a socket: a name in a folder.
#[derive(Debug)]
struct Location {
    folder: OwnedFd,
    /// The folder is on a file system in memory, where no call waits for a disk or a server.
    is_in_memory: bool,
    socket: OsString,
    lock: OsString,
}

/// The reason why a socket could not be bound.
#[derive(Debug, thiserror::Error)]
pub enum BindFailure {
    /// The name is in use by the process that is described.
    #[error("in use by {0}")]
    InUse(String),
    /// Another error of the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// State of the socket's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileState {
    /// It exists.
    Bound,
    /// It was removed. A new one is bound, and this process owns the name.
    Rebound,
    /// Readers can no longer connect, for this reason.
    Lost(String),
}

impl Location {
    fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder = open(parent.unwrap_or(Path::new(".")), flags, Mode::empty())?;
        let is_in_memory = fstatfs(&folder).is_ok_and(|system| system.f_type as u64 == TMPFS);
        let mut lock = name.to_owned();
        lock.push(".lock");
        Ok(Self { folder, is_in_memory, socket: name.to_owned(), lock })
    }

    fn lock(&self) -> Result<NameLock, BindFailure> {
        NameLock::take(self.folder.as_fd(), &self.lock).map_err(|error| match error {
            NameTaken::By(holder) => BindFailure::InUse(holder),
            NameTaken::Io(error) => error.into(),
        })
    }

    /// Returns device and inode of the socket's file. An error if a file of that name is not a
    /// socket.
    fn file(&self) -> io::Result<Option<(u64, u64)>> {
        match statat(&self.folder, &self.socket, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => {
                Ok(Some((found.st_dev, found.st_ino)))
            }
            Ok(_) => Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket")),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the socket's file if it is this one.
    fn unlink(&self, file: (u64, u64)) {
        if self.file().is_ok_and(|found| found == Some(file)) {
            let _ = unlinkat(&self.folder, &self.socket, AtFlags::empty());
        }
    }
}

impl Listener {
    /// Takes the name and listens at `path`, whose file gets this mode. Replaces the socket of a
    /// dead exporter.
    ///
    /// # Errors
    ///
    /// [`BindFailure::InUse`] if another process owns the name, or listens at the path.
    pub fn bind(path: &Path, mode: u32) -> Result<Self, BindFailure> {
        if abstract_name(path).is_some() {
            return Ok(Self { socket: Arc::new(listen_at_name(path)?), spare: Spare::get(), file: None });
        }
        let place = Location::of(path)?;
        let lock = place.lock()?;
        let (socket, id) = listen_at(path, mode, &place)?;
        let file = SocketFile { path: path.to_owned(), mode, place, id, lock };
        Ok(Self { socket: Arc::new(socket), spare: Spare::get(), file: Some(file) })
    }

    /// The listening socket. [`Listener::check`] may replace it.
    pub fn socket(&self) -> &Arc<UntrustedFd> {
        &self.socket
    }

    /// Returns whether [`Listener::check`] may wait for a disk, or for a server of files.
    pub fn check_may_block(&self) -> bool {
        self.file.as_ref().is_some_and(|file| !file.place.is_in_memory)
    }

    /// Accepts the next waiting connection, if there is one.
    ///
    /// # Errors
    /// The error of accept(2), such as a lack of files.
    pub fn accept(&self) -> io::Result<Option<Socket>> {
        loop {
            match accept_with(&self.socket, FLAGS) {
                Ok(socket) => return Ok(Some(Socket::accepted(socket))),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Refuses the next waiting connection with a packet, although this process can open no more
    /// files.
    pub fn turn_away(&self, packet: &[u8]) {
        let mut spare = self.spare.0.lock().unwrap_or_else(PoisonError::into_inner);
        *spare = None;
        if let Ok(Some(pending)) = self.accept() {
            let _ = pending.send(packet, &[]);
        }
        // The refused connection may occupy a descriptor for a while.
        *spare = Spare::open();
    }

    /// Checks that readers still find the socket. If its file was removed, with or without its
    /// folder and lock file, a new one is bound; a name that another process has taken meanwhile
    /// stays with it.
    pub fn check(&mut self) -> FileState {
        let Some(file) = &mut self.file else { return FileState::Bound };
        if file.is_there() {
            return FileState::Bound;
        }
        match file.bind_again() {
            Ok(socket) => {
                if let Some(socket) = socket {
                    self.socket = Arc::new(socket);
                }
                FileState::Rebound
            }
            Err(error) => FileState::Lost(error.to_string()),
        }
    }
}

impl SocketFile {
    fn is_locked_at(&self, place: &Location) -> bool {
        self.lock.is_at(place.folder.as_fd(), &place.lock)
    }

    fn is_there(&self) -> bool {
        self.is_locked_at(&self.place) && self.place.file().is_ok_and(|found| found == Some(self.id))
    }

    /// Takes the name again where it was lost. Returns a new socket if the file is another one.
    fn bind_again(&mut self) -> Result<Option<UntrustedFd>, BindFailure> {
        // The path may lead to another folder now.
        let place = Location::of(&self.path)?;
        let is_locked = self.is_locked_at(&self.place) && self.is_locked_at(&place);
        let lock = if is_locked { None } else { Some(place.lock()?) };
        let mut socket = None;
        if place.file()? != Some(self.id) {
            let (bound, id) = listen_at(&self.path, self.mode, &place)?;
            (socket, self.id) = (Some(bound), id);
        }
        self.place = place;
        if let Some(lock) = lock {
            self.lock = lock;
        }
        Ok(socket)
    }
}

/// Binds and listens at an abstract name. A former owner in this process may close its socket a
/// moment after it has shut it down.
fn listen_at_name(path: &Path) -> Result<UntrustedFd, BindFailure> {
    let address = address(path)?;
    let socket = UntrustedFd::socket(socket()?, rustix::process::geteuid().as_raw());
    refuse_descriptors(&socket);
    let begin = Instant::now();
    loop {
        match bind(&socket, &address) {
            Ok(()) => {
                listen(&socket, BACKLOG).map_err(io::Error::from)?;
                return Ok(socket);
            }
            Err(Errno::ADDRINUSE) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        match listening_at(&address)? {
            Some(holder) => return Err(BindFailure::InUse(holder)),
            None if begin.elapsed() > CLOSING => {
                return Err(BindFailure::InUse("another process, which does not listen there".into()));
            }
            None => thread::sleep(CLOSING / 100),
        }
    }
}

/// Binds and listens, in place of a socket without a listener. The caller holds the name's lock.
fn listen_at(path: &Path, mode: u32, place: &Location) -> Result<(UntrustedFd, (u64, u64)), BindFailure> {
    let address = address(path)?;
    if let Some(stale) = place.file()? {
        if let Some(holder) = listening_at(&address)? {
            return Err(BindFailure::InUse(holder));
        }
        place.unlink(stale);
    }
    let socket = UntrustedFd::socket(socket()?, rustix::process::geteuid().as_raw());
    // Before Linux 6.16 descriptors are detected on reception.
    refuse_descriptors(&socket);
    // bind(2) gives the file the mode of the socket, less the bits of the umask.
    let mode = Mode::from_raw_mode(mode);
    fchmod(&socket, mode).map_err(io::Error::from)?;
    bind(&socket, &address).map_err(io::Error::from)?;
    let bound = || {
        let found = statat(&place.folder, &place.socket, AtFlags::SYMLINK_NOFOLLOW)?;
        if Mode::from_raw_mode(found.st_mode) != mode {
            chmodat(&place.folder, &place.socket, mode, AtFlags::empty())?;
        }
        listen(&socket, BACKLOG)?;
        Ok((found.st_dev, found.st_ino))
    };
    let file = bound().map_err(|error: Errno| io::Error::from(error))?;
    Ok((socket, file))
}

/// A socket over which nothing is received.
fn probe() -> io::Result<UntrustedFd> {
    Ok(UntrustedFd::socket(socket()?, rustix::process::geteuid().as_raw()))
}

/// Returns the PID of the exporter that listens at a path, `None` within for a process without a
/// number or a full backlog. None if no process listens, or this user may not connect.
pub fn listener_of(path: &Path) -> Option<Option<u32>> {
    let probe = probe().ok()?;
    match connect(&probe, &address(path).ok()?) {
        Ok(()) => Some(peer_pid(&probe)),
        Err(Errno::AGAIN) => Some(None),
        Err(_) => None,
    }
}

/// Returns a description of the process that listens at a socket's file, if one does. Only
/// ECONNREFUSED means that no process listens: a full backlog (EAGAIN), another type of socket
/// (EPROTOTYPE) and missing permission (EACCES) are answers of a live one.
fn listening_at(address: &SocketAddrUnix) -> io::Result<Option<String>> {
    let probe = probe()?;
    match connect(&probe, address) {
        Ok(()) => Ok(Some(match peer_pid(&probe) {
            Some(pid) => format!("process {pid} of user {}, which listens there", peer_uid(&probe)),
            None => "another process, which listens there".into(),
        })),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(None),
        Err(Errno::PROTOTYPE) => Ok(Some("another program, whose socket it is".into())),
        Err(error) => Ok(Some(format!("another process, which listens there ({})", io::Error::from(error)))),
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            file.place.unlink(file.id);
        }
        // Connections that were not accepted hang up now, whatever their queues hold.
        while let Ok(Some(connection)) = self.accept() {
            drop(connection);
        }
    }
}

impl Spare {
    /// The one of this process, while it has listeners.
    fn get() -> Arc<Self> {
        static SPARE: PerProcess<Mutex<Weak<Spare>>> = PerProcess::new(Mutex::default);
        let mut current = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
        let spare = current.upgrade().unwrap_or_else(|| Arc::new(Self(Mutex::new(Self::open()))));
        *current = Arc::downgrade(&spare);
        spare
    }

    /// A descriptor that can be closed at any time.
    fn open() -> Option<OwnedFd> {
        eventfd(0, EventfdFlags::CLOEXEC).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::wait_until;
    use std::{
        fs,
        os::unix::{
            fs::{MetadataExt, PermissionsExt},
            net::{UnixDatagram, UnixListener, UnixStream},
        },
    };

    fn path() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.sock");
        (folder, path)
    }

    #[test]
    fn live_socket_of_other_program_is_kept() {
        let (_folder, path) = path();
        let listener = UnixListener::bind(&path).unwrap();
        let error = Listener::bind(&path, 0o600).unwrap_err();
        assert!(matches!(error, BindFailure::InUse(_)), "{error}");
        drop(UnixStream::connect(&path).unwrap());
        drop(listener);
        // The child of a test that forked in between holds a copy until it ends.
        wait_until("a stale socket is replaced", || match Listener::bind(&path, 0o600) {
            Ok(_) => true,
            Err(BindFailure::InUse(_)) => false,
            Err(error) => panic!("{error}"),
        });

        let datagrams = UnixDatagram::bind(&path).unwrap();
        assert!(matches!(Listener::bind(&path, 0o600), Err(BindFailure::InUse(_))));
        UnixDatagram::unbound().unwrap().send_to(b"x", &path).unwrap();
        drop(datagrams);
    }

    #[test]
    fn live_seqpacket_socket_with_full_backlog_is_kept() {
        let (_folder, path) = path();
        let address = SocketAddrUnix::new(&path).unwrap();
        let other = socket().unwrap();
        bind(&other, &address).unwrap();
        listen(&other, 0).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let mut connections = Vec::new();
        loop {
            let connection = socket().unwrap();
            if connect(&connection, &address) == Err(Errno::AGAIN) {
                break;
            }
            connections.push(connection);
        }
        assert!(matches!(Listener::bind(&path, 0o600), Err(BindFailure::InUse(_))));
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode);
    }

    #[test]
    fn dropped_listener_removes_own_file_only() {
        let (_folder, path) = path();
        let listener = Listener::bind(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        let other = UnixListener::bind(&path).unwrap();
        drop(listener);
        drop(UnixStream::connect(&path).unwrap());
        drop(other);
    }

    #[test]
    fn socket_mode_is_independent_of_umask() {
        for mode in [0o600, 0o666] {
            let (_folder, path) = path();
            let _listener = Listener::bind(&path, mode).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, mode);
        }
    }

    #[test]
    fn removed_socket_is_bound_again_with_its_folder_and_lock() {
        let (folder, _) = path();
        let inner = folder.path().join("inner");
        let path = inner.join("s.sock");
        fs::create_dir(&inner).unwrap();
        let mut listener = Listener::bind(&path, 0o600).unwrap();
        let connects = || super::super::connect(&path).is_ok();
        assert_eq!(listener.check(), FileState::Bound);
        fs::remove_file(&path).unwrap();
        assert!(!connects());
        assert_eq!(
            (listener.check(), connects(), listener.check()),
            (FileState::Rebound, true, FileState::Bound)
        );
        fs::remove_file(inner.join("s.sock.lock")).unwrap();
        assert_eq!(
            (listener.check(), connects(), listener.check()),
            (FileState::Rebound, true, FileState::Bound)
        );
        fs::remove_dir_all(&inner).unwrap();
        assert!(matches!(listener.check(), FileState::Lost(_)));
        fs::create_dir(&inner).unwrap();
        assert_eq!(
            (listener.check(), connects(), listener.check()),
            (FileState::Rebound, true, FileState::Bound)
        );
        assert!(matches!(Listener::bind(&path, 0o600), Err(BindFailure::InUse(_))));
    }

    #[test]
    fn socket_replaced_by_other_process_is_lost() {
        let (folder, path) = path();
        let mut listener = Listener::bind(&path, 0o600).unwrap();
        fs::remove_file(&path).unwrap();
        fs::remove_file(folder.path().join("s.sock.lock")).unwrap();
        let other = Listener::bind(&path, 0o600).unwrap();
        let state = listener.check();
        assert!(matches!(&state, FileState::Lost(why) if why.contains("pid")), "{state:?}");
        drop(listener);
        assert!(super::super::connect(&path).is_ok(), "the other's file was removed");
        drop(other);
    }

    #[test]
    fn folders_are_compared_by_inode() {
        let (folder, path) = path();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        let _listener = Listener::bind(&path, 0o600).unwrap();
        assert!(matches!(Listener::bind(&link.join("s.sock"), 0o600), Err(BindFailure::InUse(_))));
    }

    #[test]
    fn abstract_name_is_free_after_drop() {
        let path = PathBuf::from(format!("@frameshare-listener-{}", std::process::id()));
        for _ in 0..50 {
            let mut listener = Listener::bind(&path, 0o600).unwrap();
            let error = Listener::bind(&path, 0o600).unwrap_err().to_string();
            assert!(error.contains(&format!("process {}", std::process::id())), "{error}");
            assert_eq!(listener.check(), FileState::Bound);
            // Its queue holds a connection.
            let _connection = super::super::connect(&path).unwrap();
            drop(listener);
            assert!(super::super::connect(&path).is_err());
        }
        assert!(!path.exists());
    }

    /// A name of its own: a process that another test starts may hold one for a moment.
    #[test]
    fn abstract_name_that_nobody_listens_on_is_in_use() {
        let path = PathBuf::from(format!("@frameshare-bound-{}", std::process::id()));
        let bound = socket().unwrap();
        bind(&bound, &address(&path).unwrap()).unwrap();
        let error = Listener::bind(&path, 0o600).unwrap_err();
        assert!(matches!(&error, BindFailure::InUse(holder) if holder.contains("not listen")), "{error}");
    }
}
