// SPDX-License-Identifier: MIT OR Apache-2.0

//! CPU time and wake-ups of processes, from /proc.

use frameshare::monotonic_ns;
use rustix::param::clock_ticks_per_second;
use std::{collections::HashMap, fs};

/// Cost of a process per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// CPU time, in cores.
    pub cpu: f64,
    /// Wake-ups of all its threads.
    pub wakeups: f64,
}

/// Counters of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Counters {
    /// Time of the counters in ns.
    time: u64,
    /// Start of the process: its number may be another's later.
    started: u64,
    cpu_ticks: u64,
    wakeups: u64,
}

/// Costs of processes between two samples.
#[derive(Debug, Default)]
pub struct Costs {
    before: HashMap<u32, Counters>,
    now: HashMap<u32, Counters>,
}

impl Costs {
    /// Begins a sample.
    pub fn begin(&mut self) {
        self.before = std::mem::take(&mut self.now);
    }

    /// Returns the cost of a process since the sample before, if it was in that.
    pub fn of(&mut self, pid: u32) -> Option<Cost> {
        let now = match self.now.get(&pid) {
            Some(now) => *now,
            None => {
                let now = counters(pid)?;
                self.now.insert(pid, now);
                now
            }
        };
        let before = self.before.get(&pid).filter(|before| before.started == now.started)?;
        Some(cost(before, &now, clock_ticks_per_second()))
    }
}

fn cost(before: &Counters, now: &Counters, ticks_per_second: u64) -> Cost {
    let seconds = now.time.saturating_sub(before.time).max(1) as f64 / 1e9;
    let ticks = now.cpu_ticks.saturating_sub(before.cpu_ticks) as f64;
    Cost {
        cpu: ticks / ticks_per_second.max(1) as f64 / seconds,
        // Threads that ended took their counters with them.
        wakeups: now.wakeups.saturating_sub(before.wakeups) as f64 / seconds,
    }
}

/// Reads the counters of a process of this PID namespace.
fn counters(pid: u32) -> Option<Counters> {
    let (started, cpu_ticks) = parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?.flatten();
    let statuses = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    let wakeups = statuses.filter_map(|status| parse_switches(&status)).sum();
    Some(Counters { time: monotonic_ns(), started, cpu_ticks, wakeups })
}

/// Returns the start time and the CPU time, in ticks. The name may contain anything.
fn parse_stat(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    // From the third field on, as proc_pid_stat(5) counts.
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some((number(22)?, number(14)? + number(15)?))
}

/// Returns how often a thread has slept and was woken.
fn parse_switches(status: &str) -> Option<u64> {
    status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_found_in_texts_of_kernel() {
        let stat = "812 (a) b (c) R 1 812 812 0 -1 4194560 100 0 0 0 25 17 0 0 20 0 4 0 123456 1000 200";
        assert_eq!(parse_stat(stat), Some((123456, 42)));
        let status = "Name:\tx\nvoluntary_ctxt_switches:\t77\nnonvoluntary_ctxt_switches:\t5\n";
        assert_eq!(parse_switches(status), Some(77));
        assert!(counters(std::process::id()).is_some() && counters(u32::MAX).is_none());
    }

    #[test]
    fn cost_is_per_second() {
        let before = Counters { time: 1_000_000_000, started: 1, cpu_ticks: 10, wakeups: 100 };
        let now = Counters { time: 3_000_000_000, started: 1, cpu_ticks: 60, wakeups: 500 };
        assert_eq!(cost(&before, &now, 100), Cost { cpu: 0.25, wakeups: 200.0 });
    }

    #[test]
    fn process_without_sample_before_has_no_cost() {
        let (mut costs, own) = (Costs::default(), std::process::id());
        costs.begin();
        assert_eq!(costs.of(own), None);
        costs.begin();
        assert!(costs.of(own).is_some());
        costs.now.get_mut(&own).unwrap().started += 1;
        costs.begin();
        assert_eq!(costs.of(own), None);
    }
}
