//! Who is at the other end of a socket, and who we are.

use frameshare_protocol::message::Nonce;
use once_cell::sync::Lazy;
use rustix::{
    net::sockopt::socket_peercred,
    process::{PidfdFlags, pidfd_open},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// The process at the other end, as the kernel saw it when the connection was made.
#[derive(Debug)]
pub struct Peer {
    /// Its number.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// Turns readable when the process is gone. `None` where the kernel cannot say (a peer from another PID
    /// namespace, or Linux before 5.3); the socket's hang-up is then all there is.
    pub gone: Option<OwnedFd>,
}

impl Peer {
    /// Asks the kernel.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials = socket_peercred(&socket)?;
        let gone = pidfd_open(credentials.pid, PidfdFlags::empty()).ok();
        Ok(Self { pid: credentials.pid.as_raw_nonzero().get() as u32, uid: credentials.uid.as_raw(), gone })
    }

    /// Whether it runs as the same user as this process, or as root, who may read everything anyway.
    pub fn is_own_or_root(&self) -> bool {
        self.uid == 0 || self.is_own()
    }

    /// Whether it runs as the same user as this process.
    pub fn is_own(&self) -> bool {
        self.uid == rustix::process::geteuid().as_raw()
    }
}

/// The random number that names this process.
pub fn process_nonce() -> Nonce {
    static NONCE: Lazy<Nonce> = Lazy::new(|| {
        let mut nonce = [0; 16];
        // The kernel always has random bytes once it has booted; time and PID are better than nothing before.
        if rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty()) != Ok(nonce.len()) {
            nonce[..8].copy_from_slice(&super::monotonic_ns().to_le_bytes());
            nonce[8..12].copy_from_slice(&std::process::id().to_le_bytes());
        }
        nonce
    });
    *NONCE
}

/// The name of this process's program.
pub fn process_name() -> String {
    let program = std::env::current_exe().ok();
    let name = program.as_ref().and_then(|path| path.file_name());
    name.map_or_else(|| "unknown".into(), |name| name.to_string_lossy().into_owned())
}
