//! What a process has used so far.

use crate::stamp::nanoseconds;
use rustix::time::ClockId;
use serde::{Deserialize, Serialize};
use std::fs;

/// Used by all threads of this process since it began, or between two moments.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time in ns, the kernel's part included.
    pub cpu: u64,
    /// How often a thread went to sleep.
    pub sleeps: u64,
    /// How often a thread had to make way for another.
    pub preempted: u64,
}

impl Usage {
    /// Up to now, of the threads that live.
    pub fn now() -> Self {
        let mut usage = Self { cpu: nanoseconds(ClockId::ProcessCPUTime), ..Self::default() };
        for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
            // A thread that ends meanwhile takes its counts along; readers and exporters start none while measured.
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

    /// What was used since an earlier moment.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            sleeps: self.sleeps.saturating_sub(earlier.sleeps),
            preempted: self.preempted.saturating_sub(earlier.preempted),
        }
    }
}
