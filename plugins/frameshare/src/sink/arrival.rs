// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arrival of the present buffer.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Arrival of the present buffer in the sink. The streaming thread sets it; a change of state, on
/// another thread, forgets it: a pause of the pipeline is no wait.
#[derive(Default)]
pub(super) struct Arrival(AtomicU64);

impl Arrival {
    /// Sets the arrival in ns of `CLOCK_MONOTONIC`, if it counts.
    pub(super) fn set(&self, arrived: Option<u64>) {
        self.0.store(arrived.unwrap_or(0), Relaxed);
    }

    /// Returns the arrival in ns of `CLOCK_MONOTONIC`, unless it was forgotten.
    pub(super) fn get(&self) -> Option<u64> {
        Some(self.0.load(Relaxed)).filter(|arrived| *arrived > 0)
    }

    /// Forgets the arrival: the time since then is no wait for readers.
    pub(super) fn forget(&self) {
        self.set(None);
    }
}
