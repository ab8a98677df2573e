// SPDX-License-Identifier: MIT OR Apache-2.0

//! A forked child that outlives its parent and keeps all of its descriptors open.
//!
//! # Safety
//!
//! Between `fork` and `exit` the child calls async-signal-safe functions only.
#![allow(unsafe_code)]

use std::io;

/// Longer than any test; the child of an aborted test exits after it.
const SECONDS: u32 = 120;

/// Forks, and returns the child's process id.
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
