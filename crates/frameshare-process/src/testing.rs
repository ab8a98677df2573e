// SPDX-License-Identifier: MIT OR Apache-2.0

//! Forked children of tests.
//!
//! # Safety
//!
//! The child runs the caller's code alone, which uses no lock of the test's other threads; the C
//! library makes its allocator usable after a fork.
#![allow(unsafe_code)]

use rustix::process::{Pid, WaitOptions, waitpid};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `child` in a forked child. Returns its result, false for a panic; `None` if it does not
/// return.
///
/// # Panics
/// If the system makes no process.
pub fn in_child(child: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: see the header.
    let pid = match unsafe { libc::fork() } {
        -1 => panic!("no child: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: the signal ends a child that hangs.
            unsafe { libc::alarm(20) };
            let succeeds = catch_unwind(AssertUnwindSafe(child)).unwrap_or(false);
            // SAFETY: it ends the process without the destructors of the parent's objects.
            unsafe { libc::_exit(i32::from(!succeeds)) }
        }
        pid => Pid::from_raw(pid).expect("a child has an ID"),
    };
    let (_, status) =
        waitpid(Some(pid), WaitOptions::empty()).ok().flatten().expect("a child can be awaited");
    status.exit_status().map(|status| status == 0)
}
