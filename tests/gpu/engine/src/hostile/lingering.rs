// SPDX-License-Identifier: MIT OR Apache-2.0

//! Descriptor whose close blocks.

use std::io::Write as _;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use anyhow::Result;
use rustix::net::sockopt::set_socket_linger;

/// Returns a TCP socket with SO_LINGER and data that its peer, which is this process, never reads.
pub fn lingering() -> Result<OwnedFd> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let mut stream = TcpStream::connect(listener.local_addr()?)?;
    let unread = listener.accept()?;
    stream.set_nonblocking(true)?;
    while stream.write(&[0; 65536]).is_ok() {}
    set_socket_linger(&stream, Some(Duration::from_secs(3600)))?;
    std::mem::forget((listener, unread));
    Ok(stream.into())
}

/// Closes this process's copy of a descriptor that was sent. If the victim has closed its copy
/// first, this close blocks, so it runs on a separate thread.
pub fn leave(fd: OwnedFd) {
    std::thread::spawn(move || drop(fd));
}
