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

/// Runs `child` in a forked child, which the end of this thread ends. Returns its result, false for
/// a panic; `None` if it does not return.
///
/// # Panics
/// If the system makes no process.
pub fn in_child(child: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: see the header.
    let pid = match unsafe { libc::fork() } {
        -1 => panic!("no child: {}", std::io::Error::last_os_error()),
        0 => {
            // SAFETY: the signals end a child that hangs, and those below it: process 1 of a
            // namespace ignores the first.
            unsafe {
                libc::alarm(20);
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            }
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

/// Runs `parent` in a process, then `child` in a forked child that has the same ID: each is
/// process 1 of a PID namespace. Where none can be made, the test is skipped.
///
/// # Panics
/// If one of them does, `child` returns false, or does not end.
pub fn with_same_id(test: &str, parent: impl FnOnce(), child: impl FnOnce() -> bool) {
    if in_child(begin_pid_namespace) != Some(true) {
        eprintln!("SKIP {test}: no PID namespace can be made");
        return;
    }
    let is_first = || std::process::id() == 1;
    let second = || is_first() && child();
    let first = || {
        parent();
        // It starts no thread from now on.
        is_first() && begin_pid_namespace() && in_child(second) == Some(true)
    };
    assert_eq!(in_child(|| begin_pid_namespace() && in_child(first) == Some(true)), Some(true));
}

/// Has the next children of this process begin in a new PID namespace.
fn begin_pid_namespace() -> bool {
    // SAFETY: the process goes on in its own namespace.
    unsafe { libc::unshare(libc::CLONE_NEWPID) == 0 }
}
