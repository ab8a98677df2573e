// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failure semantics: processes that are killed, stopped or slow, exporters that start again,
//! exhausted resources, users without permission. Real processes, real signals, host memory; every
//! frame is compared with the published one. The guarantees are in `docs/failure-semantics.md`;
//! `tests/gpu/engine` tests the same for GPU memory.
//!
//! `FRAMESHARE_FAULTS=N` repeats repeated actions N times as often (`make faults`).

mod access;
#[allow(dead_code, reason = "the tests of lifecycles use the rest of it")]
#[path = "../lifecycle/census.rs"]
mod census;
mod exporters;
mod inflight;
mod killed;
mod limits;
mod names;
#[allow(dead_code, reason = "the tests of lifecycles use the rest of it")]
#[path = "../lifecycle/pipelines.rs"]
mod pipelines;
mod reconnecting;
mod restarts;
mod slow;
#[allow(dead_code, reason = "the tests of the elements use the rest of it")]
#[path = "../elements/stage.rs"]
mod stage;
mod stalled;
mod writes;

use serde_json::Value;
use stage::{Outcome, Process, Stage};
use std::{io::Write, time::Duration};

/// Longer than any test takes: a wait for a reader until then is a failure.
const NEVER_MS: u64 = 600_000;
/// Maximum time of a wait that does not count as held up, even on a loaded machine.
const HELD_UP_MS: u64 = 5_000;

/// Number of repetitions.
fn times(count: usize) -> usize {
    let factor = std::env::var("FRAMESHARE_FAULTS").ok().and_then(|factor| factor.parse().ok());
    count * factor.unwrap_or(1)
}

/// An exporter that only death or a reader with all credit could stop, and that ends on command.
struct Stream {
    exporter: Process,
    stage: Stage,
}

impl Stream {
    fn start(options: &str) -> Self {
        let stage = Stage::new();
        let mut exporter = stage
            .peer(&format!("export --stream s --frames 100000000 --size 20000 --until {} {options}", UNTIL));
        exporter.wait_for("open");
        Self { exporter, stage }
    }

    fn read(&self, options: &str) -> Process {
        let mut reader = self.stage.peer(&format!("read --stream s --verify yes --quiet yes {options}"));
        reader.wait_for("connected");
        reader
    }

    /// Waits until the exporter reports this event of a process.
    fn says(&mut self, event: &str, pid: u32) -> Value {
        loop {
            let line = self.exporter.wait_for(event);
            if line["pid"] == pid {
                return line;
            }
        }
    }

    /// Waits until this number of further frames has been published.
    fn flow(&mut self, frames: u64) {
        let published = |line: Value| line["published"].as_u64().expect("it says how many");
        let begin = self.exporter.last("progress").map_or(0, published);
        while published(self.exporter.wait_for("progress")) < begin + frames {}
    }

    /// Ends the stream normally.
    fn end(self) -> (Outcome, Stage) {
        std::fs::write(self.stage.path(UNTIL), "").expect("the folder is ours");
        (self.exporter.finish_well(), self.stage)
    }
}

/// The file that ends a [`Stream`].
const UNTIL: &str = "end";

/// Checks the result of a lossless reader: every frame, whole.
fn saw_everything(reader: Process, published: &Value) {
    let summary = reader.finish_well().summary();
    assert_eq!(
        (&summary["frames"], &summary["lost"], &summary["bad"], &summary["end"]),
        (published, &0.into(), &0.into(), &"eos".into()),
        "{summary}"
    );
}

/// Returns whether an exporter reported this event of a process.
fn said(outcome: &Outcome, event: &str, pid: u32) -> Option<Value> {
    outcome.events(event).into_iter().find(|line| line["pid"] == pid)
}

/// Returns whether a test that changes its user can run; prints a counted line if not.
fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        // Bypasses the harness's capture: skips are counted.
        let line = format!("SKIP faults/{test}: only root becomes others\n");
        std::io::stdout().write_all(line.as_bytes()).expect("stdout is open");
    }
    is_root
}

/// A duration between zero and `longest`, different for every number.
fn moment(number: usize, longest: Duration) -> Duration {
    longest.mul_f64((number as f64 * 0.618_034).fract())
}
