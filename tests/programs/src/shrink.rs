// SPDX-License-Identifier: MIT OR Apache-2.0

//! Leaves out of a failing program what its failure does not need.

use std::time::{Duration, Instant};

use crate::program::Program;
use crate::run::Runner;

/// Runs of a candidate: one that fails more rarely counts as one that passes.
const RUNS: usize = 6;

/// Maximum time.
const LIMIT: Duration = Duration::from_secs(120);

/// Returns the smallest program found that fails.
pub fn shrink(runner: &Runner, mut program: Program) -> Program {
    let until = Instant::now() + LIMIT;
    let fails = |program: &Program| {
        (0..RUNS)
            .any(|_| Instant::now() < until && runner.run(program).is_ok_and(|failure| !failure.is_empty()))
    };
    loop {
        let before = program.clone();
        for candidate in without_processes(&program) {
            if fails(&candidate) {
                program = candidate;
                break;
            }
        }
        let mut piece = longest(&program);
        while piece > 0 {
            let mut index = 0;
            while let Some(candidate) = without_calls(&program, index, piece) {
                match candidate {
                    Some(candidate) if fails(&candidate) => program = candidate,
                    _ => index += 1,
                }
            }
            piece /= 2;
        }
        if program == before || Instant::now() >= until {
            return program;
        }
    }
}

fn longest(program: &Program) -> usize {
    program.processes.iter().flat_map(|process| &process.threads).map(Vec::len).max().unwrap_or(0)
}

/// The programs without the calls of one process, or without one thread. Processes stay, since
/// calls name them by number.
fn without_processes(program: &Program) -> Vec<Program> {
    let mut candidates = Vec::new();
    for (index, process) in program.processes.iter().enumerate() {
        if !process.threads.is_empty() {
            let mut candidate = program.clone();
            candidate.processes[index].threads.clear();
            candidates.push(candidate);
        }
        for thread in 0..process.threads.len() {
            let mut candidate = program.clone();
            candidate.processes[index].threads.remove(thread);
            candidates.push(candidate);
        }
    }
    candidates
}

/// The program without the piece of calls of this number; `None` behind the last.
fn without_calls(program: &Program, mut number: usize, piece: usize) -> Option<Option<Program>> {
    for (index, process) in program.processes.iter().enumerate() {
        for (thread, calls) in process.threads.iter().enumerate() {
            let pieces = calls.len().div_ceil(piece);
            if number < pieces {
                let mut candidate = program.clone();
                let from = number * piece;
                candidate.processes[index].threads[thread].drain(from..calls.len().min(from + piece));
                return Some(Some(candidate));
            }
            number -= pieces;
        }
    }
    None
}
