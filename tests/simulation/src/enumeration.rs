// SPDX-License-Identifier: MIT OR Apache-2.0

//! Systematic enumeration of all choices of a small world, depth first.
//!
//! Each run repeats the choices of the run before up to the last one that has a further
//! alternative, and takes that. With `cutting_seen_states`, a run ends where it reaches a state
//! that an earlier run has reached: the enumeration tries all continuations from its first visit.

use crate::{
    choices::Choices,
    failure::Failure,
    outcomes::Counts,
    run::{Run, World},
    seen::Seen,
};
use std::time::{Duration, Instant};

/// Enumeration of all runs. Call `next`, run, and give the choices of the finished run to `learn`;
/// until `next` returns `None`.
#[derive(Debug)]
pub struct Enumeration {
    next: Option<Vec<u32>>,
    seen: Seen,
    runs: u64,
}

impl Enumeration {
    /// Enumerates all sequences of choices.
    pub fn new() -> Self {
        Self { next: Some(Vec::new()), seen: Seen::default(), runs: 0 }
    }

    /// Enumerates all states: cuts a run at a state that was seen before. The world must give the
    /// hash of its state (see `task::set_state`).
    pub fn cutting_seen_states() -> Self {
        Self { seen: Seen::collecting(), ..Self::new() }
    }

    /// Returns the choices of the next run; `None` once all were tried.
    #[expect(clippy::should_implement_trait, reason = "each run has to be learned before the next")]
    pub fn next(&mut self) -> Option<Choices> {
        let list = self.next.take()?;
        self.runs += 1;
        Some(Choices::branch(list, std::mem::take(&mut self.seen)))
    }

    /// Takes back the choices of the run that `next` has begun.
    pub fn learn(&mut self, choices: Choices) {
        let (made, seen) = choices.into_parts();
        self.seen = seen.expect("the choices come from this enumeration");
        self.next = made.iter().rposition(|choice| choice.value + 1 < choice.of).map(|last| {
            let mut list: Vec<_> = made[..=last].iter().map(|choice| choice.value).collect();
            list[last] += 1;
            list
        });
    }

    /// Returns the number of runs begun.
    pub fn runs(&self) -> u64 {
        self.runs
    }

    /// Returns the number of different states seen; 0 if runs are not cut.
    pub fn states(&self) -> usize {
        self.seen.len()
    }
}

/// Result of an enumeration of a world.
#[derive(Debug)]
pub struct Enumerated {
    /// The first failure, and its choices.
    pub failure: Option<(Failure, Vec<u32>)>,
    /// Whether all runs were tried, and none failed.
    pub is_complete: bool,
    /// Runs tried.
    pub runs: u64,
    /// Different states seen; 0 if runs are not cut.
    pub states: usize,
    /// Steps of all runs.
    pub steps: u64,
    /// Outcomes reached.
    pub outcomes: Counts,
}

/// Tries all runs of a world, until one fails or a limit of real time is reached. The world has to
/// preempt at each step (see `Preemption::Each`), and to be small.
pub fn enumerate(world: &dyn World, mut enumeration: Enumeration, limit: Duration) -> Enumerated {
    let start = Instant::now();
    let mut failure = None;
    let mut is_complete = false;
    let mut steps = 0;
    let mut outcomes = Counts::new(world.outcomes());
    while failure.is_none() && start.elapsed() < limit {
        let Some(choices) = enumeration.next() else {
            is_complete = true;
            break;
        };
        let report = world.run(Run::new(choices));
        steps += report.steps;
        outcomes.take_from_thread();
        failure = report.failure().map(|failure| (failure.clone(), report.choices.list()));
        enumeration.learn(report.choices);
    }
    let (runs, states) = (enumeration.runs(), enumeration.states());
    Enumerated { failure, is_complete, runs, states, steps, outcomes }
}

impl Default for Enumeration {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::Enumeration;

    #[test]
    fn all_sequences_are_tried_once() {
        let mut enumeration = Enumeration::new();
        let mut tried = Vec::new();
        while let Some(mut choices) = enumeration.next() {
            // The second choice depends on the first.
            let first = choices.choose(3);
            let second = if first == 1 { choices.choose(2) } else { 0 };
            tried.push((first, second, choices.chance(5)));
            enumeration.learn(choices);
        }
        let expected: Vec<_> = [(0, 0), (1, 0), (1, 1), (2, 0)]
            .into_iter()
            .flat_map(|(first, second)| [(first, second, false), (first, second, true)])
            .collect();
        assert_eq!(tried, expected);
        assert_eq!(enumeration.runs(), 8);
    }
}
