// SPDX-License-Identifier: MIT OR Apache-2.0

//! `framesharesink` and `framesharesrc` do to a stream what a `queue` does: random programs from
//! seeds, which run both ways.
//!
//! A program that fails is shrunk and printed. Kept as a file in `found/`, it is run each time.

mod compare;
mod generate;
mod make;
mod pipelines;
mod program;
mod run;

use program::Program;
use std::{
    path::Path,
    sync::Once,
    time::{Duration, Instant},
};

fn init() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        gst::init().unwrap();
        gstframeshare::plugin_register_static().unwrap();
        gst::meta::CustomMeta::register(make::CUSTOM_META, &[]);
    });
}

/// Returns what is wrong with the outcome of a program.
fn faults(program: &Program) -> Vec<String> {
    init();
    match run::run(program) {
        Ok(outcome) => compare::differences(program.media, &outcome),
        Err(why) => vec![why],
    }
}

/// Leaves out the steps that a failure does not need. A program that cannot run fails in another
/// way than one whose outcomes differ.
fn shrink(mut program: Program) -> Program {
    let can_run = run::run(&program).is_ok();
    let fails = |program: &Program| match run::run(program) {
        Ok(outcome) => can_run && !compare::differences(program.media, &outcome).is_empty(),
        Err(_) => !can_run,
    };
    let mut piece = program.steps.len() / 2;
    while piece > 0 {
        let mut from = 0;
        while from < program.steps.len() {
            let mut candidate = program.clone();
            candidate.steps.drain(from..program.steps.len().min(from + piece));
            if candidate.is_whole() && (0..2).any(|_| fails(&candidate)) {
                program = candidate;
            } else {
                from += piece;
            }
        }
        piece /= 2;
    }
    program
}

/// Returns the number that a variable of the environment names.
fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect(name))
}

/// The controls want the first fault, as it is.
fn is_first_enough() -> bool {
    std::env::var("FIRST").is_ok()
}

/// Runs the program of a seed; one that fails is shrunk and printed.
fn seed_passes(seed: u64) -> bool {
    let program = generate::program(seed);
    let found = faults(&program);
    if found.is_empty() {
        return true;
    }
    eprintln!("seed {seed}:\n  {}", found.join("\n  "));
    if is_first_enough() {
        return false;
    }
    let program = shrink(program);
    eprintln!("shrunk:\n{program}  {}", faults(&program).join("\n  "));
    false
}

#[test]
fn programs_of_fixed_seeds_pass() {
    let failed: Vec<_> = (1..=60).filter(|seed| !seed_passes(*seed)).collect();
    assert!(failed.is_empty(), "seeds {failed:?}");
}

#[test]
fn programs_that_found_faults_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queue/found");
    for file in folder.read_dir().into_iter().flatten() {
        let file = file.unwrap().path();
        let program = Program::parse(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let found = faults(&program);
        assert!(found.is_empty(), "{}: {}", file.display(), found.join("\n  "));
    }
}

/// Runs the pipelines of a seed; those that fail are simplified and printed.
fn pipelines_pass(seed: u64) -> bool {
    let mut program = pipelines::Launch::of(seed);
    let mut found = pipelines::faults(&program);
    if found.is_empty() {
        return true;
    }
    eprintln!("pipelines of seed {seed}:\n{program}\n  {}", found.join("\n  "));
    while let Some((simpler, faults)) = program.simpler().into_iter().find_map(|simpler| {
        let faults = pipelines::faults(&simpler);
        (!faults.is_empty()).then_some((simpler, faults))
    }) {
        (program, found) = (simpler, faults);
    }
    eprintln!("simplified:\n{program}\n  {}", found.join("\n  "));
    false
}

#[test]
fn pipelines_of_fixed_seeds_pass() {
    let failed: Vec<_> = (1..=20).filter(|seed| !pipelines_pass(*seed)).collect();
    assert!(failed.is_empty(), "seeds {failed:?}");
}

/// Runs programs for SECONDS from SEED on, as `make simulate-elements` does.
#[test]
#[ignore = "takes as long as it is asked to"]
fn programs_pass_for_a_time() {
    let (seconds, first) = (number("SECONDS", 60), number("SEED", 1));
    let (major, minor, micro, _) = gst::version();
    println!("VERSION GStreamer {major}.{minor}.{micro}");
    let until = Instant::now() + Duration::from_secs(seconds);
    let (mut seed, mut failed) = (first, 0);
    while Instant::now() < until && !(is_first_enough() && failed > 0) {
        failed += u64::from(!seed_passes(seed));
        // Pipelines take a hundred times as long.
        if seed.is_multiple_of(50) {
            failed += u64::from(!pipelines_pass(seed));
        }
        seed += 1;
    }
    println!("{} programs from seed {first} on, {failed} failed", seed - first);
    assert_eq!(failed, 0);
}

/// Runs the program of SEED, TIMES times, and prints the first outcome that differs.
#[test]
#[ignore = "of one seed"]
fn program_of_a_seed_passes() {
    let (seed, times) = (number("SEED", 1), number("TIMES", 1));
    let program = generate::program(seed);
    for _ in 0..times {
        let found = faults(&program);
        assert!(found.is_empty(), "{program}{}", found.join("\n  "));
    }
}
