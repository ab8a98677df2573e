// SPDX-License-Identifier: MIT OR Apache-2.0

//! Scheduler data of the calling thread.
//!
//! # Safety
//!
//! getrusage(2), which rustix does not have, fills a structure of this stack frame.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

/// Number of cores that the calling thread may run on (sched_getaffinity(2)); 1 if the kernel does
/// not say.
pub fn allowed_cores() -> u32 {
    rustix::thread::sched_getaffinity(None).map_or(1, |cores| cores.count())
}

/// Number of times that the calling thread lost its core to another one within its time slice
/// (`ru_nivcsw` of getrusage(2) with RUSAGE_THREAD).
pub fn involuntary_switches() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` has room for the structure, and outlives the call.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
    // SAFETY: all zero is a valid value of its integers, whether or not the call wrote them.
    unsafe { usage.assume_init() }.ru_nivcsw as u64
}
