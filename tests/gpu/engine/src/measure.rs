// SPDX-License-Identifier: MIT OR Apache-2.0

//! Wall time, CPU time and call counts of the process.

use std::time::{Duration, Instant};

use frameshare_cuda::calls;
use rustix::time::{ClockId, clock_gettime};

use crate::job::{Percentiles, Steady};

/// Returns the CPU time of all threads of this process.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

/// Meter of the steady state: time, CPU time and calls.
pub struct Meter {
    from: u64,
    begin: Option<(Instant, Duration, calls::Snapshot)>,
}

impl Meter {
    /// Starts counting at frame `from`.
    pub fn new(from: u64) -> Meter {
        Meter { from, begin: None }
    }

    /// Must be called before each frame with the number of preceding frames.
    pub fn before(&mut self, frames: u64) {
        if self.begin.is_none() && frames >= self.from {
            self.begin = Some((Instant::now(), cpu(), calls::snapshot()));
        }
    }

    /// Must be called after the last frame.
    pub fn stop(self, frames: u64) -> Steady {
        let Some((time, before, counted)) = self.begin else { return Steady::default() };
        let us = |duration: Duration| duration.as_secs_f64() * 1e6;
        Steady {
            frames: frames.saturating_sub(self.from),
            cpu_us: us(cpu() - before),
            us: us(time.elapsed()),
            calls: calls::snapshot()
                .since(&counted)
                .iter()
                .map(|(call, count)| (call.to_owned(), count))
                .collect(),
        }
    }
}

impl Steady {
    /// Returns the CPU time per frame, in µs.
    pub fn cpu_per_frame(&self) -> f64 {
        self.cpu_us / self.frames.max(1) as f64
    }
}

/// Sorts samples in µs and returns their percentiles.
pub fn percentiles(mut samples: Vec<f64>) -> Percentiles {
    if samples.is_empty() {
        return Percentiles::default();
    }
    samples.sort_by(f64::total_cmp);
    let at = |percent: usize| samples[(samples.len() * percent / 100).min(samples.len() - 1)];
    Percentiles { p50: at(50), p99: at(99) }
}

/// Returns the time since `ns` of `CLOCK_MONOTONIC`, in µs.
pub fn since(ns: u64) -> f64 {
    frameshare::monotonic_ns().saturating_sub(ns) as f64 / 1e3
}
