//! Peers in namespaces of their own, as in a container that shares nothing but a socket.
//!
//! What a peer shall have to itself is a list of names, separated by commas: the namespaces `pid`, `ipc`, `mount`, `net`
//! and `uts`; with `mount` also `proc`, a /proc that fits the PID namespace, and `shm`, an empty /dev/shm. A step that
//! fails is told to the case over the socket, as the failure of its first command.
//!
//! # Safety
//! This file leaves namespaces before the process has a second thread, and only to start another program.
#![allow(unsafe_code)]

use std::fmt::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, anyhow};
use rustix::mount::{MountFlags, MountPropagationFlags};
use rustix::thread::UnshareFlags;

use crate::{Program, peer};

/// As in a container.
pub const FULL: &str = "pid,ipc,mount,net,uts,proc,shm";
/// As in a container that was given the machine's /dev/shm.
pub const SAME_SHM: &str = "pid,ipc,mount,net,uts,proc";
/// With the machine's process numbers.
pub const SAME_PID: &str = "ipc,mount,net,uts,shm";
/// With a /proc that does not fit: there, the number that the process has for itself is another's or nobody's.
pub const WRONG_PROC: &str = "pid,ipc,mount,net,uts,shm";

/// In place of a socket: there is no peer to start.
const PROBE: &str = "probe";

/// Whether this machine lets us isolate peers; else why not.
pub(crate) fn possible() -> Result<(), String> {
    let output = Command::new("/proc/self/exe")
        .args(["--isolate", FULL, PROBE])
        .output()
        .map_err(|e| e.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("this machine lets us make no namespaces: {}", said.trim()))
}

/// Enters new namespaces and has a child settle in there: only children are in a new PID namespace.
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
            refuse(socket, anyhow!("the isolated process died: {status}"))
        }
        Ok(_) => Ok(ExitCode::FAILURE),
        Err(error) => refuse(socket, anyhow!(error).context("starting the isolated process")),
    }
}

/// Is the process inside: mounts what it shall have, and is a peer.
pub(crate) fn settle(program: &Program, what: &str, socket: &str) -> Result<ExitCode> {
    match mounts(what) {
        Err(error) => refuse(socket, error.context(format!("{what}; {}", surroundings()))),
        Ok(()) if socket == PROBE => Ok(ExitCode::SUCCESS),
        Ok(()) => program.serve(socket),
    }
}

fn mounts(what: &str) -> Result<()> {
    let has = |wanted| what.split(',').any(|name| name == wanted);
    if has("mount") {
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .context("making mounts private")?;
    }
    if has("shm") {
        rustix::mount::mount("tmpfs", "/dev/shm", "tmpfs", MountFlags::empty(), None)
            .context("mounting a /dev/shm")?;
    }
    if has("proc") {
        let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("proc", "/proc", "proc", flags, None).context("mounting a /proc")?;
    }
    Ok(())
}

fn refuse(socket: &str, error: anyhow::Error) -> Result<ExitCode> {
    if socket == PROBE {
        return Err(error);
    }
    peer::refuse(socket, format!("isolating: {error:#}"))?;
    Ok(ExitCode::SUCCESS)
}

/// What this process sees of the things that a CUDA driver may look at.
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
