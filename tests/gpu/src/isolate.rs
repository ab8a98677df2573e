//! Peers in namespaces of their own, as in a container that shares nothing but a socket.
//!
//! # Safety
//! This file leaves namespaces before the process has a second thread, and only to start another program.
#![allow(unsafe_code)]

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

/// Isolated with a /dev/shm of its own.
pub const WITHOUT_SHM: &str = "without-shm";
/// Isolated but for /dev/shm.
pub const WITH_SHM: &str = "with-shm";

/// Whether this machine lets us make namespaces; else why not.
pub fn possible() -> Result<(), String> {
    let status = Command::new("/proc/self/exe").args(["--isolate", "probe", ""]).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("this machine lets us make no namespaces".into()),
        Err(error) => Err(error.to_string()),
    }
}

/// Enters new namespaces, for processes, IPC, mounts, network and host name, and starts a peer there.
pub fn enter(what: &str, socket: &str) -> Result<ExitCode> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    let all = UnshareFlags::NEWPID
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWUTS;
    // SAFETY: this process has one thread, and no descriptors are unshared.
    unsafe { rustix::thread::unshare_unsafe(all) }.context("unshare")?;
    rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
        .context("making mounts private")?;
    if what != WITH_SHM {
        rustix::mount::mount("tmpfs", "/dev/shm", "tmpfs", MountFlags::empty(), None)
            .context("mounting a /dev/shm")?;
    }
    if what == "probe" {
        return Ok(ExitCode::SUCCESS);
    }
    // Its first process is the first of the new process namespace. /proc stays the machine's: the simulated driver finds
    // legacy memory through it, where the real one asks the kernel.
    let status = Command::new("/proc/self/exe").args(["--peer", socket]).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
