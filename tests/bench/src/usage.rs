// SPDX-License-Identifier: MIT OR Apache-2.0

//! CPU time and context switches of a process.

use crate::stamp::nanoseconds;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::fs;

/// Totals of all threads of this process since its start, or differences of two totals.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in ns, user and kernel.
    pub cpu: u64,
    /// Voluntary context switches.
    pub sleeps: u64,
    /// Involuntary context switches.
    pub preempted: u64,
}

impl Usage {
    /// Reads the totals of the current threads.
    pub fn now() -> Self {
        let mut usage = Self { cpu: nanoseconds(ClockId::ProcessCPUTime), ..Self::default() };
        for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            // The counts of a thread end with it; no thread starts or ends during a measurement.
            let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
            for line in status.lines() {
                let value = || line.split_whitespace().nth(1)?.parse::<u64>().ok();
                if line.starts_with("voluntary_ctxt_switches") {
                    usage.sleeps += value().unwrap_or(0);
                } else if line.starts_with("nonvoluntary_ctxt_switches") {
                    usage.preempted += value().unwrap_or(0);
                }
            }
        }
        usage
    }

    /// Difference to earlier totals.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            sleeps: self.sleeps.saturating_sub(earlier.sleeps),
            preempted: self.preempted.saturating_sub(earlier.preempted),
        }
    }
}

/// CPU time of all threads of another process in ns; 0 if the kernel does not count it.
pub fn cpu_of(process: u32) -> u64 {
    let threads = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let cpu = threads.filter_map(|thread| {
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    cpu.sum()
}
