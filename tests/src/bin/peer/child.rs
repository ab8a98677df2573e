// SPDX-License-Identifier: MIT OR Apache-2.0

//! Forked children: one that outlives its parent and keeps all of its descriptors open, and one
//! that goes on as its parent would.
//!
//! # Safety
//!
//! Between `fork` and `exit` the first one calls async-signal-safe functions only. The second one
//! runs any code: the C library makes its allocator usable after a fork, and no other thread of the
//! parent holds a lock that the child needs.
#![allow(unsafe_code)]

use std::io;

/// Longer than any test; the child of an aborted test exits after it.
const SECONDS: u32 = 120;

/// Forks a child that runs `main` and exits. Returns its process id.
pub fn start(main: impl FnOnce() -> bool) -> io::Result<i32> {
    // SAFETY: see the module's documentation.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let status = i32::from(!main());
            // SAFETY: it ends the process without the destructors of what the parent has made.
            unsafe { libc::_exit(status) }
        }
        child => Ok(child),
    }
}

/// Forks a child that sleeps, and returns its process id.
pub fn leave() -> io::Result<i32> {
    // SAFETY: see the module's documentation.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            // SAFETY: both are async-signal-safe.
            unsafe {
                libc::sleep(SECONDS);
                libc::_exit(0)
            }
        }
        child => Ok(child),
    }
}
