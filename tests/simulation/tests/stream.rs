// SPDX-License-Identifier: MIT OR Apache-2.0

//! The world of a stream: its first seeds pass, reach their outcomes, and can be repeated.

use frameshare_simulation::{
    choices::Choices,
    outcomes::Counts,
    run::{Report, Run, World},
    stream::{Outcome, Stream},
};
use std::thread;

/// Seeds that the tests run.
const SEEDS: u64 = 300;
/// Seeds whose traces are compared: those of one seed have thousands of lines.
const TRACED: u64 = 20;

fn run(seed: u64) -> Report {
    Stream.run(Run::new(Choices::seeded(seed)))
}

#[test]
fn first_seeds_pass() {
    for seed in 0..SEEDS {
        let report = run(seed);
        if let Some(failure) = report.failure() {
            panic!("seed {seed} failed: {failure}\nits whole run: simulate --world stream seed {seed}");
        }
    }
}

/// A simulation in which no reader is ever evicted says nothing about evictions.
#[test]
fn first_seeds_reach_outcomes() {
    // Outcomes of other tests in this thread are not counted.
    Counts::new(Outcome::NAMES).take_from_thread();
    (0..SEEDS).for_each(|seed| drop(run(seed)));
    let mut counts = Counts::new(Outcome::NAMES);
    counts.take_from_thread();
    let reached = [
        Outcome::Joined,
        Outcome::Took,
        Outcome::TookOnGpu,
        Outcome::EvictedSlow,
        Outcome::EvictedLimit,
        Outcome::EvictedViolation,
        Outcome::Revoked,
        Outcome::Backlog,
        Outcome::Retired,
        Outcome::RetiredSlot,
        Outcome::Kept,
        Outcome::KeptUnits,
        Outcome::Downloaded,
        Outcome::Died,
        Outcome::ExporterDied,
        Outcome::SleptOnFutex,
        Outcome::SleptOnSocket,
    ];
    for outcome in reached {
        let name = Outcome::NAMES[outcome as usize];
        assert!(counts.of(name) > 0, "{name}: never reached in {SEEDS} seeds\n{counts}");
    }
}

#[test]
fn same_seed_gives_same_trace_twice() {
    for seed in 0..TRACED {
        let traced = || Stream.run(Run::traced(Choices::seeded(seed)));
        let (first, second) = (traced(), traced());
        assert!(first.trace.len() > 10, "seed {seed}: {} lines", first.trace.len());
        let lines = first.trace.iter().zip(&second.trace);
        if let Some((line, other)) = lines.clone().find(|(line, other)| line != other) {
            panic!("seed {seed}: the traces differ\n{line}\n{other}");
        }
        assert_eq!(first.trace.len(), second.trace.len(), "seed {seed}");
        assert_eq!((first.steps, first.time, first.end), (second.steps, second.time, second.end));
    }
}

#[test]
fn same_seed_gives_same_run_in_each_thread() {
    let runs = || -> Vec<_> {
        let reports = (0..TRACED).map(run);
        reports.map(|report| (report.choices.list(), report.steps, report.time, report.end)).collect()
    };
    let here = runs();
    let there = thread::spawn(runs).join().expect("no panic");
    assert_eq!(here, there);
}
