//! What the machine under the suites is and can do.
//!
//! # Safety
//! This file asks a socket for an option that rustix does not know, with an out-parameter on its own stack.
#![allow(unsafe_code)]

use std::fmt::Display;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::PidfdFlags;

/// Linux 6.5; the same number on every architecture with a GPU.
const SO_PEERPIDFD: libc::c_int = 77;

/// Prints kernel, driver, and which of the system calls that frameshare likes to have work here.
pub fn print() {
    println!("kernel {}", rustix::system::uname().release().to_string_lossy());
    let driver = std::fs::read_to_string("/proc/driver/nvidia/version").ok();
    let line = driver.as_deref().and_then(|text| text.lines().next());
    println!("driver {}", line.unwrap_or("without /proc/driver/nvidia"));
    report("pidfd_open", rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()));
    report("SO_PEERPIDFD", peer_pidfd());
    report("F_SEAL_FUTURE_WRITE", seal_future_write());
}

fn report<T>(what: &str, tried: Result<T, impl Display>) {
    match tried {
        Ok(_) => println!("{what} works"),
        Err(error) => println!("{what} does not work: {error}"),
    }
}

fn peer_pidfd() -> std::io::Result<OwnedFd> {
    let (ours, _theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let mut fd: libc::c_int = -1;
    let mut length = size_of_val(&fd) as libc::socklen_t;
    // SAFETY: the option is one int wide, as `length` says.
    let result = unsafe {
        libc::getsockopt(
            ours.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel just opened this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The seal is taken, and holds.
fn seal_future_write() -> Result<(), String> {
    let memory =
        rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(text)?;
    rustix::fs::ftruncate(&memory, 4096).map_err(text)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE).map_err(text)?;
    match rustix::io::write(&memory, b"x") {
        Err(rustix::io::Errno::PERM) => Ok(()),
        other => Err(format!("it was taken and does not hold: {other:?}")),
    }
}

fn text(error: rustix::io::Errno) -> String {
    error.to_string()
}
