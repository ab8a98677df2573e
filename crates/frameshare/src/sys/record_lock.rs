// SPDX-License-Identifier: MIT OR Apache-2.0

//! Record locks as a sign of life.
//!
//! A record lock of fcntl(2) belongs to a process: it ends with the process although a forked child
//! keeps the descriptor. It also ends when the process closes any other descriptor of the same
//! file. Locks of open file descriptions (F_OFD_SETLK) live on in the child and would say nothing.

use super::UntrustedFd;
use rustix::{
    fs::{FlockOperation, fcntl_lock},
    process::{Flock, FlockType, fcntl_getlk},
};
use std::{io, os::fd::AsFd};

/// A lock that lives as long as this process and this value. The process must have no other
/// descriptor of the file that it closes meanwhile.
#[derive(Debug)]
#[must_use = "dropping the lock reports this process as dead"]
pub struct ProcessLock(#[expect(dead_code, reason = "closing it ends the lock")] UntrustedFd);

impl ProcessLock {
    /// Locks all of a file that is open for writing. Without the lock (ENOLCK) the value is only a
    /// descriptor: a peer takes a missing lock for nothing.
    pub fn new(file: UntrustedFd) -> Self {
        let _ = fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        Self(file)
    }
}

/// Returns whether another process holds a lock on a file (F_GETLK), in any PID namespace.
///
/// # Errors
/// The error of fcntl(2).
pub fn is_locked(file: impl AsFd) -> io::Result<bool> {
    Ok(fcntl_getlk(file, &Flock::from(FlockType::WriteLock))?.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::memfd;

    #[test]
    fn own_lock_reads_as_missing() {
        let file = memfd("test", 4096).unwrap();
        assert!(!is_locked(&file).unwrap());
        let alive = ProcessLock::new(UntrustedFd::received(file.try_clone().unwrap(), 0));
        assert!(!is_locked(&file).unwrap(), "locks of the process itself are no conflict");
        drop(alive);
    }
}
