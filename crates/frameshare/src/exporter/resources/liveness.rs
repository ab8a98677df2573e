// SPDX-License-Identifier: MIT OR Apache-2.0

//! Death of a reader's process where the kernel gives no pidfd: a peer in another PID namespace
//! before Linux 6.5, any peer before Linux 5.3.
//!
//! A hang-up does not show it: a forked child keeps the socket open. The reader holds a record lock
//! on its claims page, which ends with its process. A reader that never took the lock is not judged
//! by it.

use crate::sys::is_locked;
use std::{
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

/// Polling interval of the lock.
const INTERVAL: Duration = Duration::from_millis(250);

/// The lock of one reader.
#[derive(Debug)]
pub struct Liveness {
    claims: OwnedFd,
    was_locked: bool,
    next: Instant,
}

impl Liveness {
    pub fn new(claims: OwnedFd) -> Self {
        Self { claims, was_locked: false, next: Instant::now() + INTERVAL }
    }

    /// Time of the next poll.
    pub fn next(&self) -> Instant {
        self.next
    }

    /// Returns whether the process has ended: it held the lock, and no longer does.
    pub fn is_over(&mut self) -> bool {
        let now = Instant::now();
        if now < self.next {
            return false;
        }
        self.next = now + INTERVAL;
        match is_locked(&self.claims) {
            Ok(true) => {
                self.was_locked = true;
                false
            }
            Ok(false) => self.was_locked,
            // The kernel is short of memory: poll again later.
            Err(_) => false,
        }
    }
}
