//! A forked child that outlives its parent with everything open that the parent had open.
//!
//! # Safety
//!
//! The child calls nothing but what is safe between `fork` and `exec`: it sleeps and exits.
#![allow(unsafe_code)]

use std::io;

/// Long enough for any test, after which nothing of one that was broken off is left.
const SECONDS: u32 = 120;

/// Forks; the child's process id.
pub fn leave() -> io::Result<i32> {
    // SAFETY: see the module.
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
