//! Nothing lost, nobody stuck: processes that are killed, stopped or slow, exporters that start again, resources that run
//! out, users who may not read. Real processes, real signals, host memory; every frame is compared with what was
//! published. What is promised is in `docs/failure-semantics.md`; the same for GPU memory is tested by `tests/gpu/engine`.
//!
//! `FRAMESHARE_FAULTS=N` repeats what is done many times N times as often (`make faults`).

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

/// Longer than any test takes: who waits for a reader until then has lost.
const NEVER_MS: u64 = 600_000;
/// What waits no longer than a wake-up and some scheduling takes is not held up, even on a loaded machine.
const HELD_UP_MS: u64 = 5_000;

/// How often to do what is done many times.
fn times(count: usize) -> usize {
    let factor = std::env::var("FRAMESHARE_FAULTS").ok().and_then(|factor| factor.parse().ok());
    count * factor.unwrap_or(1)
}

/// An exporter that nothing but death or a reader that took everything could stop, and that ends when it is told to.
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

    /// Waits until the exporter says this of a process.
    fn says(&mut self, event: &str, pid: u32) -> Value {
        loop {
            let line = self.exporter.wait_for(event);
            if line["pid"] == pid {
                return line;
            }
        }
    }

    /// Waits until so many more frames have been published.
    fn flow(&mut self, frames: u64) {
        let published = |line: Value| line["published"].as_u64().expect("it says how many");
        let begin = self.exporter.last("progress").map_or(0, published);
        while published(self.exporter.wait_for("progress")) < begin + frames {}
    }

    /// Ends the stream in good order.
    fn end(self) -> (Outcome, Stage) {
        std::fs::write(self.stage.path(UNTIL), "").expect("the folder is ours");
        (self.exporter.finish_well(), self.stage)
    }
}

/// The file that ends a [`Stream`].
const UNTIL: &str = "end";

/// What came of a lossless reader: every frame, whole.
fn saw_everything(reader: Process, published: &Value) {
    let summary = reader.finish_well().summary();
    assert_eq!(
        (&summary["frames"], &summary["lost"], &summary["bad"], &summary["end"]),
        (published, &0.into(), &0.into(), &"eos".into()),
        "{summary}"
    );
}

/// Whether an exporter said this of a process.
fn said(outcome: &Outcome, event: &str, pid: u32) -> Option<Value> {
    outcome.events(event).into_iter().find(|line| line["pid"] == pid)
}

/// Whether a test can be run that becomes other users; says so if not.
fn is_root(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        // Past the harness's capture: skips are counted.
        let line = format!("SKIP faults/{test}: only root becomes others\n");
        std::io::stdout().write_all(line.as_bytes()).expect("stdout is open");
    }
    is_root
}

/// A moment between none and `longest`, another one for every number.
fn moment(number: usize, longest: Duration) -> Duration {
    longest.mul_f64((number as f64 * 0.618_034).fract())
}
