// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory stays bounded over many runs. The only test of its process.

use frameshare_simulation::{
    choices::Choices,
    run::{Run, World},
    toy::{Bug, Ring},
};
use std::fs;

/// Returns the resident memory and the address space of this process, in KiB.
fn memory() -> [u64; 2] {
    let status = fs::read_to_string("/proc/self/status").expect("/proc is mounted");
    ["VmRSS:", "VmSize:"].map(|name| {
        let line =
            status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel reports memory");
        line.trim().trim_end_matches(" kB").parse().expect("a number of KiB")
    })
}

/// Half of the worlds kill a process, and those with a bug fail.
#[test]
fn hundred_thousand_runs_take_no_further_memory() {
    let worlds = [Ring::correct(), Ring::with(Bug::PublishesTooEarly), Ring::with(Bug::ForgetsClosing)];
    let run = |seeds: std::ops::Range<u64>| {
        for seed in seeds {
            worlds[(seed % 3) as usize].run(Run::new(Choices::seeded(seed)));
        }
    };
    run(0..2_000);
    let before = memory();
    run(2_000..102_000);
    let after = memory();
    println!("before {before:?} KiB, after {after:?} KiB");
    for (before, after) in before.into_iter().zip(after) {
        assert!(after < before + 1_024, "{before} KiB before, {after} KiB after 100,000 runs");
    }
}
