// SPDX-License-Identifier: MIT OR Apache-2.0

//! The clock of frame times, and the present time of one step.

use std::{cell::OnceCell, time::Instant};

/// Now, in ns of `CLOCK_MONOTONIC`, which all processes of a machine share.
#[inline(never)]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The present time of one step: it is read once, if it is needed at all, and is the same for all
/// that takes part in the step. A step makes no call that may block for long: each reader has its
/// own.
#[derive(Debug, Default)]
pub struct Now(OnceCell<Instant>);

impl Now {
    pub fn get(&self) -> Instant {
        *self.0.get_or_init(Instant::now)
    }
}
