// SPDX-License-Identifier: MIT OR Apache-2.0

//! Small worlds: one exporter and two or three readers with a fixed script, for enumerations.
//!
//! The pieces are those of `stream`. The readers join, and all tasks run in turn, until the
//! publisher calls `preempt_at_each_step`; from then on, each run deviates at some steps from the
//! order in which each task runs until it waits. A fate that is one of these tasks kills a reader
//! at any step. Time stands still while a task can run.
//!
//! | module | its script |
//! | --- | --- |
//! | `stage` | the parts of all scripts |
//! | `backlog` | frames wait for lossless readers |
//! | `retirement` | a generation ends, and a reader may join late |
//! | `trimming` | a single slot ends, and its generation goes on |
//! | `stories` | tests of one run each |

mod backlog;
mod retirement;
mod stage;
#[cfg(test)]
mod stories;
mod trimming;

use crate::{
    end::End,
    run::{Report, Run, World},
    settings::{Clock, Preemption, Settings},
    stream::{check_end, exporter, record::Record},
};
use std::{rc::Rc, time::Duration};

/// A small world. Its runs are to be enumerated.
#[derive(Clone, Debug)]
pub struct Small {
    script: Script,
    size: Size,
}

/// The size of a small world.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Readers that have joined at first: 1 or 2.
    pub readers: u32,
    /// Deviations from the default order of tasks, at most.
    pub deviations: u32,
}

/// The script of a small world.
#[derive(Clone, Debug)]
struct Script {
    name: &'static str,
    /// The outcomes that the enumeration has to reach.
    goals: &'static [&'static str],
    exporter: fn(u32) -> exporter::Settings,
    /// Spawns the tasks, with so many readers.
    begin: fn(&stage::Stage, u32),
}

impl Small {
    /// Frames wait for lossless readers.
    pub fn backlog(size: Size) -> Self {
        Self { script: backlog::SCRIPT, size }
    }

    /// A generation ends.
    pub fn retirement(size: Size) -> Self {
        Self { script: retirement::SCRIPT, size }
    }

    /// A slot ends, and its generation goes on.
    pub fn trimming(size: Size) -> Self {
        Self { script: trimming::SCRIPT, size }
    }
}

impl World for Small {
    fn name(&self) -> &'static str {
        self.script.name
    }

    fn outcomes(&self) -> &'static [&'static str] {
        self.script.goals
    }

    fn run(&self, run: Run) -> Report {
        let clock = Clock { tick: Duration::ZERO, ..Clock::default() };
        let settings = Settings {
            preemption: Preemption::Never,
            deviations: self.size.deviations,
            clock,
            steps: 100_000,
        };
        let record = Rc::new(Record::default());
        record.is_regular.set(true);
        let script = &self.script;
        let mut report = run.start(&settings, || {
            let stage = stage::Stage::new(&(script.exporter)(self.size.readers), &record);
            (script.begin)(&stage, self.size.readers);
        });
        report.fail_unless_done();
        if report.end == End::Done {
            check_end(&record, &mut report);
        }
        report
    }
}
