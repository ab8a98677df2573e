// SPDX-License-Identifier: MIT OR Apache-2.0

//! Platform report: kernel, driver, GPUs and supported system calls.
//!
//! # Safety
//! This file reads a socket option that rustix does not support, with an out-parameter on its own
//! stack.
#![allow(unsafe_code)]

use std::fmt::Display;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::PidfdFlags;
use serde_json::json;

/// Since Linux 6.5; the same number on every architecture with a GPU.
const SO_PEERPIDFD: libc::c_int = 77;

/// Returns one JSON line: kernel, driver, GPUs, and which of the optional system calls of
/// frameshare work. Does not call CUDA, which may hang or fail.
pub fn line() -> String {
    let shm = rustix::fs::statvfs("/dev/shm").ok().map(|shm| (shm.f_bavail * shm.f_frsize) >> 20);
    json!({
        "platform": {
            "kernel": rustix::system::uname().release().to_string_lossy(),
            "driver": driver(),
            "gpus": gpus(),
            "cores": std::thread::available_parallelism().ok(),
            "pidfd": works(rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())),
            "SO_PEERPIDFD": works(peer_pidfd()),
            "F_SEAL_FUTURE_WRITE": works(seal_future_write()),
            "dev_shm_mib": shm,
        }
    })
    .to_string()
}

fn works<T>(tried: Result<T, impl Display>) -> String {
    tried.map_or_else(|error| error.to_string(), |_| "yes".to_owned())
}

/// Returns the version of NVIDIA's kernel module, if it is loaded.
fn driver() -> Option<String> {
    let text = std::fs::read_to_string("/proc/driver/nvidia/version").ok()?;
    let number = |word: &&str| word.contains('.') && word.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.split_whitespace().find(number).map(str::to_owned)
}

/// Returns the GPU models that the kernel module has found.
fn gpus() -> Vec<String> {
    let found = std::fs::read_dir("/proc/driver/nvidia/gpus").into_iter().flatten().flatten();
    let mut models: Vec<_> = found
        .filter_map(|gpu| {
            let text = std::fs::read_to_string(gpu.path().join("information")).ok()?;
            let model = text.lines().find_map(|line| line.strip_prefix("Model:"))?;
            Some(model.trim().to_owned())
        })
        .collect();
    models.sort();
    models
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
    // SAFETY: the kernel has just opened this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Checks that the seal can be set and is enforced.
fn seal_future_write() -> Result<(), String> {
    let memory =
        rustix::fs::memfd_create("probe", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(text)?;
    rustix::fs::ftruncate(&memory, 4096).map_err(text)?;
    rustix::fs::fcntl_add_seals(&memory, SealFlags::FUTURE_WRITE).map_err(text)?;
    match rustix::io::write(&memory, b"x") {
        Err(rustix::io::Errno::PERM) => Ok(()),
        other => Err(format!("the seal was set but is not enforced: {other:?}")),
    }
}

fn text(error: rustix::io::Errno) -> String {
    error.to_string()
}
