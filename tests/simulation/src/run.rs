// SPDX-License-Identifier: MIT OR Apache-2.0

//! A run of a world: its choices before, its report afterwards.

use crate::{
    choices::Choices,
    end::End,
    failure::{Failure, Silence, Unwound, catch},
    scheduler,
    settings::Settings,
    time::Time,
    trace,
};
use std::time::Duration;

/// A set of tasks under test, and what they may do to each other.
pub trait World: Sync {
    /// The name, for command lines.
    fn name(&self) -> &'static str;

    /// The names of all outcomes that runs may reach (see `outcomes!`).
    fn outcomes(&self) -> &'static [&'static str];

    /// Runs the world once. All variety must come from the choices of the run, and no state may
    /// stay behind in the thread: the same choices must give the same report.
    fn run(&self, run: Run) -> Report;
}

/// A run that has not started.
#[derive(Debug)]
pub struct Run {
    choices: Choices,
    is_traced: bool,
}

impl Run {
    /// Prepares a run without a trace.
    pub fn new(choices: Choices) -> Self {
        Self { choices, is_traced: false }
    }

    /// Prepares a run whose report has a trace.
    pub fn traced(choices: Choices) -> Self {
        Self { choices, is_traced: true }
    }

    /// Returns the choices, for those that the world makes before the start.
    pub fn choices(&mut self) -> &mut Choices {
        &mut self.choices
    }

    /// Calls `setup`, which spawns the first tasks, and runs all tasks to the end of the run.
    ///
    /// # Panics
    /// If called in a run.
    pub fn start(self, settings: &Settings, setup: impl FnOnce()) -> Report {
        trace::start(self.is_traced);
        let silence = Silence::begin();
        scheduler::begin(self.choices, settings);
        let end = match catch(setup) {
            Ok(()) | Err(Unwound::Killed) => scheduler::drive(),
            Err(Unwound::Failed(failure)) => End::Failed(failure),
        };
        let (choices, steps, time) = scheduler::finish();
        drop(silence);
        Report { end, steps, time, choices, trace: trace::take() }
    }
}

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// The end.
    pub end: End,
    /// Steps of all tasks.
    pub steps: u64,
    /// Virtual time at the end.
    pub time: Time,
    /// The choices made.
    pub choices: Choices,
    /// The trace; empty if the run was not traced.
    pub trace: Vec<String>,
}

impl Report {
    /// Makes the run one that failed, unless it has failed already.
    #[track_caller]
    pub fn fail(&mut self, what: impl Into<String>) {
        if self.failure().is_none() {
            self.end = End::Failed(Failure::here(what));
        }
    }

    /// Makes the run one that failed if it is stuck or too long, for worlds that must not be.
    #[track_caller]
    pub fn fail_unless_done(&mut self) {
        match &self.end {
            End::Stuck(waiting) => self.fail(format!("stuck\n{}", waiting.join("\n"))),
            End::TooLong => self.fail("too long: the bound on steps was reached"),
            End::Done | End::Cut | End::Failed(_) => {}
        }
    }

    /// Returns the failure, if the run failed.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.end {
            End::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns the virtual time that the run took.
    pub fn duration(&self) -> Duration {
        self.time - Time::ZERO
    }
}
