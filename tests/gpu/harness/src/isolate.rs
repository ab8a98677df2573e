// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peers in separate namespaces, as in a container that shares only a socket.
//!
//! The isolation is given as a comma-separated list: the namespaces `pid`, `ipc`, `mount`, `net`
//! and `uts`; with `mount` also `proc`, a /proc that matches the PID namespace, and `shm`, an empty
//! /dev/shm. If a step fails, the peer reports that over the socket as the failure of its first
//! command.
//!
//! # Safety
//! This file leaves namespaces while the process has only one thread, and only to start another
//! program.
#![allow(unsafe_code)]

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::peer;

/// Full isolation, as in a container.
pub const FULL: &str = "pid,ipc,mount,net,uts,proc,shm";
/// As in a container with the host's /dev/shm.
pub const SAME_SHM: &str = "pid,ipc,mount,net,uts,proc";
/// With the host's PID namespace.
pub const SAME_PID: &str = "ipc,mount,net,uts,shm";
/// With a /proc of another PID namespace, in which the process's own PID names another process or
/// none.
pub const WRONG_PROC: &str = "pid,ipc,mount,net,uts,shm";

/// Placeholder for the socket: probes the namespaces without starting a peer.
const PROBE: &str = "probe";

/// Checks that this machine permits isolated peers; the error is the reason.
pub(crate) fn possible() -> Result<(), String> {
    let output = Command::new("/proc/self/exe")
        .args(["--isolate", FULL, PROBE])
        .output()
        .map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("cannot create namespaces on this machine: {}", said.trim()))
}

/// Enters new namespaces and starts a child in them: only children are in a new PID namespace.
pub(crate) fn enter(what: &str, socket: &str) -> Result<ExitCode> {
    peer::die_with_parent()?;
    let mut flags = UnshareFlags::empty();
    for name in what.split(',') {
        flags |= match name {
            "pid" => UnshareFlags::NEWPID,
            "ipc" => UnshareFlags::NEWIPC,
            "mount" => UnshareFlags::NEWNS,
            "net" => UnshareFlags::NEWNET,
            "uts" => UnshareFlags::NEWUTS,
            _ => UnshareFlags::empty(),
        };
    }
    // SAFETY: this process has one thread, and no descriptors are unshared.
    let unshared = unsafe { rustix::thread::unshare_unsafe(flags) };
    if let Err(error) = unshared {
        return refuse(socket, anyhow!(error).context(format!("unshare {what}")));
    }
    let child = Command::new("/proc/self/exe").args(["--isolated", what, socket]).status();
    match child {
        Ok(status) if status.success() => Ok(ExitCode::SUCCESS),
        Ok(status) if socket != PROBE && status.signal().is_some() => {
            refuse(socket, anyhow!("the isolated process exited: {status}"))
        }
        Ok(_) => Ok(ExitCode::FAILURE),
        Err(error) => refuse(socket, anyhow!(error).context("cannot start the isolated process")),
    }
}

/// Runs inside the namespaces: mounts the requested file systems. `None` means that the process is
/// to serve as a peer.
pub(crate) fn settle(what: &str, socket: &str) -> Result<Option<ExitCode>> {
    match mounts(what) {
        Err(error) => refuse(socket, error.context(format!("{what}; {}", surroundings()))).map(Some),
        Ok(()) if socket == PROBE => Ok(Some(ExitCode::SUCCESS)),
        Ok(()) => Ok(None),
    }
}

fn mounts(what: &str) -> Result<()> {
    let has = |wanted| what.split(',').any(|name| name == wanted);
    if has("mount") {
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .context("cannot make mounts private")?;
    }
    if has("shm") {
        rustix::mount::mount("tmpfs", "/dev/shm", "tmpfs", MountFlags::empty(), None)
            .context("cannot mount /dev/shm")?;
    }
    if has("proc") {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("proc", "/proc", "proc", flags, None).context("cannot mount /proc")?;
    }
    Ok(())
}

fn refuse(socket: &str, error: anyhow::Error) -> Result<ExitCode> {
    if socket == PROBE {
        return Err(error);
    }
    peer::refuse(socket, format!("cannot isolate the peer: {error:#}"))?;
    Ok(ExitCode::SUCCESS)
}

/// Describes the parts of this process's environment that a CUDA driver may use.
pub fn surroundings() -> String {
    let mut text = format!("pid {}", std::process::id());
    let _ = match std::fs::read_link("/proc/self") {
        Ok(target) => write!(text, ", /proc/self is {}", target.display()),
        Err(error) => write!(text, ", /proc/self: {error}"),
    };
    let threads = format!("/proc/{}/task", std::process::id());
    for path in [&threads, "/sys/bus/pci/devices", "/dev/shm"] {
        let _ = match std::fs::read_dir(path) {
            Ok(entries) => write!(text, ", {path} has {}", entries.count()),
            Err(error) => write!(text, ", {path}: {error}"),
        };
    }
    for path in [
        "/proc/driver/nvidia/version",
        "/proc/devices",
        "/dev/null",
        "/dev/nvidiactl",
        "/dev/nvidia0",
        "/dev/nvidia-uvm",
    ] {
        if let Err(error) = std::fs::File::open(path) {
            let _ = write!(text, ", {path}: {error}");
        }
    }
    text
}
