// SPDX-License-Identifier: MIT OR Apache-2.0

//! The harness finds, repeats and shrinks failures of the toy world, and proves the correct one.

use frameshare_simulation::{
    choices::Choices,
    end::End,
    enumeration::{Enumeration, enumerate},
    run::{Report, Run, World},
    runner::{Plan, explore},
    shrink::shrink,
    toy::{Bug, Ring},
};
use std::{thread, time::Duration};

fn traced(world: &dyn World, choices: Choices) -> Report {
    world.run(Run::traced(choices))
}

/// Returns the first seed that fails.
fn failing_seed(world: &dyn World) -> u64 {
    let fails = |seed: &u64| world.run(Run::new(Choices::seeded(*seed))).failure().is_some();
    (0..2_000).find(fails).expect("one of 2,000 seeds fails")
}

#[test]
fn same_seed_gives_same_trace_in_each_thread() {
    let world = Ring::correct();
    let traces = || -> Vec<_> {
        (0..50).map(|seed| traced(&world, Choices::seeded(seed))).map(|r| (r.trace, r.end, r.time)).collect()
    };
    let here = traces();
    assert!(here.iter().all(|(trace, ..)| trace.len() > 10));
    assert_eq!(here, traces());
    thread::scope(|scope| {
        let workers: Vec<_> = (0..3).map(|_| scope.spawn(traces)).collect();
        workers.into_iter().for_each(|worker| assert_eq!(worker.join().expect("no panic"), here));
    });
}

#[test]
fn trace_does_not_change_the_run() {
    let world = Ring::correct();
    for seed in 0..200 {
        let plain = world.run(Run::new(Choices::seeded(seed)));
        let traced = traced(&world, Choices::seeded(seed));
        assert!(plain.trace.is_empty());
        assert_eq!(plain.choices.made(), traced.choices.made(), "seed {seed}");
        assert_eq!((plain.steps, plain.time, plain.end), (traced.steps, traced.time, traced.end));
    }
}

#[test]
fn recorded_choices_replay_the_run() {
    let world = Ring::with(Bug::PublishesTooEarly);
    let seed = failing_seed(&world);
    let first = traced(&world, Choices::seeded(seed));
    let again = traced(&world, Choices::listed(first.choices.list()));
    assert_eq!(first.trace, again.trace);
    assert_eq!(first.end, again.end);
}

#[test]
fn failure_shrinks_to_a_few_choices() {
    // The first needs one preemption between two stores, the second none at all.
    for (bug, most) in [(Bug::PublishesTooEarly, 1), (Bug::ForgetsClosing, 0)] {
        let world = Ring::with(bug);
        let report = world.run(Run::new(Choices::seeded(failing_seed(&world))));
        let kind = report.failure().expect("the seed fails").kind();
        let list = report.choices.list();
        let shrunk = shrink(&world, list.clone(), &kind, Duration::from_secs(20));
        let complex = shrunk.choices.iter().filter(|choice| **choice != 0).count();
        assert!(complex <= most, "{list:?} shrinks to {:?} only", shrunk.choices);
        assert!(shrunk.choices.len() <= 8, "{list:?} shrinks to {:?} only", shrunk.choices);
        let repeated = traced(&world, Choices::listed(shrunk.choices));
        assert_eq!(repeated.failure().expect("the shrunk run fails").kind(), kind);
        assert!(!repeated.trace.is_empty());
    }
}

#[test]
fn failure_names_message_and_place() {
    let world = Ring::with(Bug::PublishesTooEarly);
    let report = world.run(Run::new(Choices::seeded(failing_seed(&world))));
    let failure = report.failure().expect("the seed fails");
    assert!(failure.what.contains("is wrong"), "{failure}");
    assert!(failure.place.contains("ring.rs:"), "{failure}");
}

#[test]
fn runner_finds_the_bug_and_passes_the_correct_world() {
    let plan = |limit| Plan { seed: 1, threads: 2, limit, progress: Duration::from_secs(1) };
    let broken = Ring::with(Bug::PublishesTooEarly);
    let (_, found) = explore(&broken, &plan(Duration::from_secs(60)), |_| ());
    let found = found.expect("the bug is found");
    let again = broken.run(Run::new(Choices::seeded(found.seed)));
    assert_eq!(again.end, found.report.end);

    let (summary, found) = explore(&Ring::correct(), &plan(Duration::from_secs(1)), |_| ());
    assert!(found.is_none(), "{:?}", found.map(|found| found.report.end));
    assert!(summary.runs > 100, "{summary}");
    assert_eq!(summary.outcomes.check_all_reached(), Ok(()), "{}", summary.outcomes);
}

#[test]
fn enumeration_finds_the_bug_and_proves_the_correct_world() {
    for (enumeration, kills) in [
        (Enumeration::new as fn() -> _, false),
        (Enumeration::cutting_seen_states, false),
        (Enumeration::cutting_seen_states, true),
    ] {
        let values = if kills { 3 } else { 1 };
        let limit = Duration::from_secs(60);
        let broken = Ring::with(Bug::PublishesTooEarly).enumerated(values, kills);
        let (failure, list) = enumerate(&broken, enumeration(), limit).failure.expect("the bug is found");
        let repeated = broken.run(Run::new(Choices::listed(list)));
        assert_eq!(repeated.failure(), Some(&failure));

        let proof = enumerate(&Ring::correct().enumerated(values, kills), enumeration(), limit);
        println!("{} runs, {} states", proof.runs, proof.states);
        assert!(proof.is_complete && proof.runs > 10, "{proof:?}");
    }
}

#[test]
fn cut_runs_reach_the_same_ends() {
    let world = Ring::correct().enumerated(1, true);
    let ends = |mut enumeration: Enumeration| {
        let mut ends = Vec::new();
        while let Some(choices) = enumeration.next() {
            let report = traced(&world, choices);
            if report.end != End::Cut {
                // The reader's last line tells whether it has read all values.
                let last = report.trace.iter().rfind(|line| line.contains("p2 reader")).cloned();
                ends.push((report.end, last));
            }
            enumeration.learn(report.choices);
        }
        let runs = enumeration.runs();
        ends.sort_by_key(|end| format!("{end:?}"));
        ends.dedup();
        (ends, runs)
    };
    let (all, many) = ends(Enumeration::new());
    let (cut, few) = ends(Enumeration::cutting_seen_states());
    assert_eq!(all, cut);
    assert!(few * 2 < many, "{few} of {many} runs with cuts");
}
