// SPDX-License-Identifier: MIT OR Apache-2.0

//! Unreceived packets of a Unix socket.
//!
//! # Safety
//!
//! One ioctl with an out-parameter of the type that it fills.
#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd},
};

/// Returns the memory in bytes of packets that this socket has sent and its peer has not received
/// (`SIOCOUTQ`, Linux 3.12 for Unix sockets: the kernel's own size of each packet, headers
/// included). 0: the peer has received everything, or has closed its end.
///
/// # Errors
/// The error of ioctl(2).
pub fn unreceived(socket: impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, by its other name TIOCOUTQ, fills one int.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::testing::wait_until;
    use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

    #[test]
    fn unreceived_of_seqpacket_counts_until_each_packet_is_received() {
        let pair =
            || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::NONBLOCK, None).unwrap();
        let (ours, theirs) = pair();
        assert_eq!(unreceived(&ours).unwrap(), 0);
        send(&ours, b"one", SendFlags::empty()).unwrap();
        let one = unreceived(&ours).unwrap();
        send(&ours, b"two", SendFlags::empty()).unwrap();
        assert!(one > 0 && unreceived(&ours).unwrap() > one);
        assert_eq!(unreceived(&theirs).unwrap(), 0, "what the peer sent does not count");
        let mut packet = [0; 8];
        recv(&theirs, &mut packet, RecvFlags::PEEK).unwrap();
        recv(&theirs, &mut packet, RecvFlags::empty()).unwrap();
        assert_eq!(unreceived(&ours).unwrap(), one);
        recv(&theirs, &mut packet, RecvFlags::empty()).unwrap();
        assert_eq!(unreceived(&ours).unwrap(), 0);
        send(&ours, b"three", SendFlags::empty()).unwrap();
        drop(theirs);
        // The child of a test that forked in between holds a copy until it ends.
        wait_until("a peer that closed has nothing unread", || unreceived(&ours).unwrap() == 0);
    }
}
