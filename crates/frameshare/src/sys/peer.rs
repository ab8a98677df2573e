// SPDX-License-Identifier: MIT OR Apache-2.0

//! Identity of a socket's peer, and of this process.
//!
//! # Safety
//!
//! Four socket options are read or set that rustix does not know or cannot express (a process of
//! another PID namespace has the number 0 here), each with a parameter of the declared length.
#![allow(unsafe_code)]

use super::{PerProcess, limits::is_lack_of_files, user_ns::is_overflow_uid};
use frameshare_protocol::message::Nonce;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::{
    io,
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd},
};

/// Linux 6.5; the same number on every architecture with a GPU.
const SO_PEERPIDFD: libc::c_int = 77;
/// Linux 4.13; the same number on every architecture with a GPU.
const SO_PEERGROUPS: libc::c_int = 59;
/// Maximum number of groups of a process (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65536;

/// Linux 6.16; the same number on every architecture with a GPU.
const SO_PASSRIGHTS: libc::c_int = 83;

/// The process at the other end, as the kernel recorded it when the connection was made.
#[derive(Debug)]
pub struct Peer {
    /// Its PID; 0 if it is in a PID namespace that this process does not see into.
    pub pid: u32,
    /// Its effective user.
    pub uid: u32,
    /// All its groups.
    pub gids: Vec<u32>,
    /// Becomes readable when the process ends. `None` if the kernel cannot provide it (a peer from
    /// another PID namespace before Linux 6.5, or Linux before 5.3); then only the socket's hang-up
    /// is known.
    pub gone: Option<OwnedFd>,
}

impl Peer {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The error of a system call, such as a lack of files.
    pub fn of(socket: impl AsFd) -> io::Result<Self> {
        let credentials: libc::ucred = option(&socket, libc::SO_PEERCRED)?;
        let by_number = || match Pid::from_raw(credentials.pid) {
            Some(pid) => unless_files_ran_out(pidfd_open(pid, PidfdFlags::empty()).map_err(io::Error::from)),
            None => Ok(None),
        };
        let gone = match unless_files_ran_out(pidfd_of(&socket))? {
            None => by_number()?,
            gone => gone,
        };
        let mut gids = groups(&socket).unwrap_or_default();
        gids.push(credentials.gid);
        Ok(Self { pid: credentials.pid.unsigned_abs(), uid: credentials.uid, gids, gone })
    }

    /// Returns whether it runs as the same user as this process, or as root, which may read
    /// everything anyway.
    pub fn is_own_or_root(&self) -> bool {
        is_own_or_root(self.uid)
    }

    /// Returns whether it is in this very process: this copy of the engine, or another one.
    pub fn is_in_this_process(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Returns whether it is this copy of the engine in this very process. The nonce alone is no
    /// proof, since every peer of this process knows it; the kernel has to confirm it.
    pub fn is_this_process(&self, nonce: &Nonce) -> bool {
        self.is_in_this_process() && *nonce == process_nonce()
    }

    /// Returns whether it is another copy of the engine in this very process.
    pub fn is_other_copy(&self, nonce: &Nonce) -> bool {
        self.is_in_this_process() && *nonce != process_nonce()
    }

    /// Returns whether it runs as the same user as this process.
    pub fn is_own(&self) -> bool {
        is_own(self.uid)
    }
}

/// Returns the user of the process at the other end; one that no process can have (chown(2)) if the
/// kernel does not report it.
pub(super) fn peer_uid(socket: impl AsFd) -> u32 {
    option::<libc::ucred>(&socket, libc::SO_PEERCRED).map_or(u32::MAX, |credentials| credentials.uid)
}

/// Returns the process at the other end, or the listening one; none if this PID namespace has no
/// number for it.
pub(super) fn peer_pid(socket: impl AsFd) -> Option<u32> {
    let credentials = option::<libc::ucred>(&socket, libc::SO_PEERCRED).ok()?;
    u32::try_from(credentials.pid).ok().filter(|pid| *pid != 0)
}

/// Makes the kernel refuse descriptors that are sent to this Unix socket, with EPERM at the sender
/// (SO_PASSRIGHTS, Linux 6.16). Accepted connections inherit it from the listener. Returns false if
/// the kernel cannot.
pub(super) fn refuse_descriptors(socket: impl AsFd) -> bool {
    set_option(socket, SO_PASSRIGHTS, 0).is_ok()
}

/// Options of Unix sockets that not every kernel has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketFeatures {
    /// SO_PEERPIDFD (Linux 6.5): the end of a peer in another PID namespace is noticed.
    pub peer_pidfd: bool,
    /// SO_PASSRIGHTS (Linux 6.16): the kernel refuses descriptors of peers.
    pub pass_rights: bool,
}

impl SocketFeatures {
    /// Tries the options on a pair of sockets.
    ///
    /// # Errors
    /// The error of socketpair(2).
    pub fn probe() -> io::Result<Self> {
        let (socket, _peer) = std::os::unix::net::UnixStream::pair()?;
        Ok(Self { peer_pidfd: pidfd_of(&socket).is_ok(), pass_rights: refuse_descriptors(&socket) })
    }
}

/// Accepts descriptors again.
#[cfg(test)]
pub(super) fn take_descriptors(socket: impl AsFd) {
    let _ = set_option(socket, SO_PASSRIGHTS, 1);
}

/// A number that stands for several users is not this process's user, even if it has that number.
fn is_own(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() && !is_overflow_uid(uid)
}

/// Returns whether a user is the one of this process, or root.
pub fn is_own_or_root(uid: u32) -> bool {
    uid == 0 || is_own(uid)
}

/// Returns a pidfd of the process at the other end.
fn pidfd_of(socket: impl AsFd) -> io::Result<OwnedFd> {
    let fd: libc::c_int = option(socket, SO_PEERPIDFD)?;
    if fd < 0 {
        return Err(io::ErrorKind::Unsupported.into());
    }
    // SAFETY: the kernel just opened this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ignores errors except a lack of descriptors: a process that cannot be watched for that reason is
/// not admitted.
fn unless_files_ran_out<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if is_lack_of_files(&error) => Err(error),
        result => Ok(result.ok()),
    }
}

/// Returns the supplementary groups of the process at the other end.
fn groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    let mut groups = vec![0_u32; 64];
    loop {
        let mut length = size_of_val(groups.as_slice()) as libc::socklen_t;
        let fd = socket.as_fd().as_raw_fd();
        // SAFETY: `groups` has room for `length` bytes.
        let result = unsafe {
            libc::getsockopt(fd, libc::SOL_SOCKET, SO_PEERGROUPS, groups.as_mut_ptr().cast(), &raw mut length)
        };
        let found = length as usize / size_of::<u32>();
        if result == 0 {
            groups.truncate(found);
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || !(groups.len() + 1..=MAX_GROUPS).contains(&found) {
            return Err(error);
        }
        groups.resize(found, 0);
    }
}

fn set_option(socket: impl AsFd, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
    let length = size_of_val(&value) as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` has `length` bytes, and is read during the call.
    let result = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, name, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A socket's option.
fn option<T: Copy>(socket: impl AsFd, name: libc::c_int) -> io::Result<T> {
    let mut value = MaybeUninit::<T>::uninit();
    let mut length = size_of::<T>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: `value` has room for `length` bytes.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, value.as_mut_ptr().cast(), &raw mut length) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<T>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    // SAFETY: the kernel filled all of it; both types that are asked for are plain integers.
    Ok(unsafe { value.assume_init() })
}

/// The random number that names this process.
pub fn process_nonce() -> Nonce {
    static NONCE: PerProcess<Nonce> = PerProcess::new(|| {
        let mut nonce = [0; 16];
        // The kernel always has random bytes once it has booted; time and PID are better than
        // nothing before.
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
