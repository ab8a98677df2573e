// SPDX-License-Identifier: MIT OR Apache-2.0

//! A small world that tests the harness: a ring without locks between two processes, a third that
//! may kill the writer, and bugs that can be switched on.

mod ring;
mod word;

use crate::{
    run::{Report, Run, World},
    settings::{Clock, Preemption, Settings},
    task::{block, choose, kill, now, spawn, step},
};
use ring::Shared;
pub use ring::{Bug, Outcome};
use std::{rc::Rc, time::Duration};

/// The world of the ring.
#[derive(Clone, Debug)]
pub struct Ring {
    bug: Option<Bug>,
    /// Values to be written, at least 1.
    values: u64,
    /// Whether the writer may be killed.
    kills: bool,
    /// Settings for an enumeration; otherwise they are chosen.
    enumerated: bool,
}

const WRITER: u32 = 1;
const READER: u32 = 2;
const KILLER: u32 = 3;

impl Ring {
    /// Returns the world without a bug.
    pub fn correct() -> Self {
        Self { bug: None, values: 6, kills: true, enumerated: false }
    }

    /// Returns the world with a bug.
    pub fn with(bug: Bug) -> Self {
        Self { bug: Some(bug), ..Self::correct() }
    }

    /// Makes the world so small that all its runs can be enumerated: this many values, with or
    /// without kills.
    pub fn enumerated(self, values: u64, kills: bool) -> Self {
        Self { values, kills, enumerated: true, ..self }
    }

    fn settings(&self, run: &mut Run) -> Settings {
        if self.enumerated {
            let clock = Clock { tick: Duration::ZERO, ..Clock::default() };
            return Settings { preemption: Preemption::Each, clock, ..Settings::default() };
        }
        let choices = run.choices();
        let mean = *choices.among(&[2, 8, 40]);
        let clock = Clock { fault_one_in: *choices.among(&[0, 20]), ..Clock::default() };
        Settings { preemption: Preemption::Sparse { mean }, clock, steps: 10_000, ..Settings::default() }
    }
}

impl World for Ring {
    fn name(&self) -> &'static str {
        match self.bug {
            _ if self.enumerated => "ring-small",
            None => "ring",
            Some(Bug::PublishesTooEarly) => "ring-early",
            Some(Bug::ForgetsClosing) => "ring-unclosed",
        }
    }

    fn outcomes(&self) -> &'static [&'static str] {
        Outcome::NAMES
    }

    fn run(&self, mut run: Run) -> Report {
        let settings = self.settings(&mut run);
        let (shared, bug, values) = (Rc::new(Shared::default()), self.bug, self.values);
        let kills = self.kills && (self.enumerated || run.choices().chance(2));
        let patience = (!self.enumerated).then_some(Duration::from_micros(300));
        let mut report = run.start(&settings, || {
            shared.hash_for_enumeration();
            let ring = Rc::clone(&shared);
            spawn(WRITER, "writer", move || ring.write(values, bug));
            let ring = Rc::clone(&shared);
            spawn(READER, "reader", move || ring.read(values, patience));
            if kills {
                let ring = Rc::clone(&shared);
                spawn(KILLER, "killer", move || {
                    if patience.is_some() {
                        let until = now() + Duration::from_nanos(50) * choose(40);
                        block("wait to kill", Some(until), || false);
                    }
                    step("kill");
                    kill(WRITER);
                    ring.close();
                });
            }
        });
        report.fail_unless_done();
        report
    }
}
