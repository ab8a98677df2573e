// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptors that take long to close.

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, socketpair,
    sockopt::{set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size},
};
use std::{
    io::{Result, Write},
    mem::ManuallyDrop,
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

/// A descriptor that this process closes only after sending it, so that the peer's close is the
/// last one.
pub struct Trap(ManuallyDrop<OwnedFd>);

/// Creates such a descriptor.
pub type Make = fn() -> Result<Trap>;

impl Trap {
    /// Takes a descriptor.
    pub fn new(fd: impl Into<OwnedFd>) -> Self {
        Self(ManuallyDrop::new(fd.into()))
    }

    /// Closes this process's copy. If the peer has closed its own, this close is the last one, and
    /// blocks.
    pub fn sent(self) {
        let fd = ManuallyDrop::into_inner(self.0);
        std::thread::spawn(move || drop(fd));
    }
}

impl AsFd for Trap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A TCP socket with SO_LINGER and unsent data, which its peer (this process) does not read.
///
/// # Errors
/// The error of the system call.
pub fn lingering() -> Result<Trap> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // Small, since there may be hundreds; connections inherit it.
    set_socket_recv_buffer_size(&listener, 4096)?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    set_socket_send_buffer_size(&stream, 4096)?;
    let unread = listener.accept()?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 65536]).is_ok() {}
    set_socket_linger(&stream, Some(Duration::from_secs(3600)))?;
    std::mem::forget((listener, unread));
    Ok(Trap::new(stream))
}

/// A Unix socket with a lingering socket unread in its queue. Its type is valid for a wake socket.
///
/// # Errors
/// The error of the system call.
pub fn nested() -> Result<Trap> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let inner = lingering()?;
    send(&ours, &[inner.as_fd()])?;
    inner.sent();
    std::mem::forget(ours);
    Ok(Trap::new(theirs))
}

/// Sends one byte with descriptors over a wake socket.
///
/// # Errors
/// The error of the system call.
///
/// # Panics
/// With more than 253 descriptors.
pub fn send(socket: impl AsFd, fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(fds)), "there is room for all");
    let flags = rustix::net::SendFlags::NOSIGNAL;
    rustix::net::sendmsg(socket, &[std::io::IoSlice::new(&[1])], &mut control, flags).map(|_| ())
}
