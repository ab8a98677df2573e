//! Descriptors that a peer sent, whether or not anybody asked for them.
//!
//! To close a descriptor can take as long as its sender likes: a file of a file system that the sender itself runs
//! (FUSE) is flushed first, a socket that lingers waits for its peer. No thread of ours may wait for that.

use rustix::{
    fs::{FileType, fcntl_get_seals, fstat},
    net::sockopt::set_socket_linger,
};
use std::{
    io,
    os::fd::OwnedFd,
    sync::{LazyLock, mpsc},
    thread,
};

/// Passes descriptors on that can be closed at once: memory files, sockets, pipes, devices.
///
/// # Errors
///
/// If there is another one among them; then all of them are closed, by a thread that has nothing else to do.
pub(super) fn only_harmless(fds: Vec<OwnedFd>) -> io::Result<Vec<OwnedFd>> {
    if fds.iter().all(is_harmless) {
        return Ok(fds);
    }
    close_elsewhere(fds);
    Err(io::Error::new(io::ErrorKind::InvalidData, "a message came with a file or a folder"))
}

fn is_harmless(fd: &OwnedFd) -> bool {
    let Ok(found) = fstat(fd) else { return false };
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Socket => set_socket_linger(fd, None).is_ok(),
        FileType::RegularFile => fcntl_get_seals(fd).is_ok(),
        FileType::Directory | FileType::BlockDevice | FileType::Symlink => false,
        _ => true,
    }
}

fn close_elsewhere(fds: Vec<OwnedFd>) {
    static CLOSER: LazyLock<mpsc::Sender<Vec<OwnedFd>>> = LazyLock::new(|| {
        let (sender, unwanted) = mpsc::channel();
        // Without the thread the receiver is gone, and they are closed here.
        let _ = thread::Builder::new()
            .name("frameshare-close".into())
            .spawn(move || unwanted.into_iter().for_each(drop::<Vec<OwnedFd>>));
        sender
    });
    let _ = CLOSER.send(fds);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::File,
        io::Write,
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
        time::{Duration, Instant},
    };

    #[test]
    fn files_and_folders_are_refused_and_what_peers_need_is_not() {
        let file = |path: &str| File::open(path).map(OwnedFd::from).unwrap();
        for path in ["/", "/proc/self/exe"] {
            assert!(only_harmless(vec![file(path)]).is_err(), "{path}");
        }
        let memory = crate::sys::memfd("test", 4096).unwrap();
        let (ours, theirs) = crate::sys::Wake::pair().unwrap();
        let ours = ours.as_fd().try_clone_to_owned().unwrap();
        assert_eq!(only_harmless(vec![memory, ours, theirs, file("/dev/null")]).unwrap().len(), 4);
    }

    #[test]
    fn a_socket_that_lingers_does_not_hold_up_who_closes_it() {
        // Nobody reads the other end, so what was written stays, and closing waits for it.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _unread = listener.accept().unwrap();
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[0; 65536]).is_ok() {}
        set_socket_linger(&stream, Some(Duration::from_secs(60))).unwrap();
        let begin = Instant::now();
        drop(only_harmless(vec![stream.into()]).unwrap());
        assert!(begin.elapsed() < Duration::from_secs(30));
    }
}
