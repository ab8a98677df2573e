//! The control socket: whole packets, with file descriptors beside them.

use super::foreign;
use frameshare_protocol::limits::{MAX_FDS, MAX_MESSAGE};
use rustix::{
    fs::{FileType, Mode, chmod, lstat, unlink},
    io::Errno,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
        accept_with, bind, listen, recvmsg, sendmsg, socket_with,
    },
};
use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

/// Most descriptors that one packet can carry, as the kernel has it.
const SCM_MAX_FD: usize = 253;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// One connection. Never blocks.
#[derive(Debug)]
pub struct Socket(OwnedFd);

/// The outcome of [`Socket::receive`].
#[derive(Debug)]
pub enum Received {
    /// A packet, and the descriptors that came with it.
    Packet(Vec<u8>, Vec<OwnedFd>),
    /// Nothing has come.
    Nothing,
    /// The other side hung up.
    HungUp,
}

fn socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)?)
}

/// Connects to the socket at `path`; fails at once where nobody listens.
pub fn connect(path: &Path) -> io::Result<Socket> {
    let socket = socket()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(Socket(socket))
}

impl Socket {
    /// Sends one packet. `WouldBlock` if the peer does not take its packets fast enough.
    pub fn send(&self, packet: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        loop {
            match sendmsg(&self.0, &[IoSlice::new(packet)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives one packet, if one has come. Descriptors that nobody asked for are closed by who drops them.
    pub fn receive(&self) -> io::Result<Received> {
        let mut packet = vec![0; MAX_MESSAGE];
        // Room for more than the protocol knows: the kernel closes what finds none, here, and for as long as that takes.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut packet)], &mut control, flags) {
                Ok(message) => break message,
                // A peer that closed with messages unread: told once, ahead of what it had sent before.
                Err(Errno::INTR | Errno::CONNRESET) => continue,
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(error) => return Err(error.into()),
            }
        };
        let fds: Vec<OwnedFd> = control
            .drain()
            .filter_map(|part| if let RecvAncillaryMessage::ScmRights(fds) = part { Some(fds) } else { None })
            .flatten()
            .collect();
        let fds = foreign::only_harmless(fds)?;
        if message.flags.contains(ReturnFlags::TRUNC) || fds.len() > MAX_FDS {
            let text = "a message longer than the protocol allows";
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other(
                "file descriptors that came could not be taken: raise this process's limit of open files (ulimit -n)",
            ));
        }
        if message.bytes == 0 {
            return Ok(Received::HungUp);
        }
        packet.truncate(message.bytes);
        Ok(Received::Packet(packet, fds))
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The socket that readers connect to. The file goes when it is dropped: its owner holds the name's lock.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    /// Given up for a moment to tell newcomers that there are no descriptors left for them.
    spare: Option<OwnedFd>,
}

impl Listener {
    /// Binds `path`, in place of a socket that a dead exporter left there; its file gets this mode. The caller holds the
    /// name's lock.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        match lstat(path) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => unlink(path)?,
            Ok(_) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "there is a file that is no socket",
                ));
            }
            Err(_) => {}
        }
        let listener = Self { socket: socket()?, path: path.to_owned(), spare: Some(socket()?) };
        bind(&listener.socket, &SocketAddrUnix::new(path)?)?;
        // Nobody can connect before `listen`, so the mode is right from the first connection on.
        chmod(path, Mode::from_raw_mode(mode))?;
        listen(&listener.socket, 64)?;
        Ok(listener)
    }

    /// The next connection that waits, if one does.
    pub fn accept(&self) -> io::Result<Option<Socket>> {
        loop {
            match accept_with(&self.socket, FLAGS) {
                Ok(socket) => return Ok(Some(Socket(socket))),
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Listener {
    /// When this process can open no more files: tells the next newcomer something, and hangs up.
    pub fn turn_away(&mut self, packet: &[u8]) {
        self.spare = None;
        if let Ok(Some(newcomer)) = self.accept() {
            let _ = newcomer.send(packet, &[]);
        }
        self.spare = self.socket.try_clone().ok();
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = unlink(&self.path);
    }
}
