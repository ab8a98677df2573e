// SPDX-License-Identifier: MIT OR Apache-2.0

//! The clock of frame times.

/// Now, in ns of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[inline(never)]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
