// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failure semantics: processes that are killed, stopped or slow, exporters that start again,
//! exhausted resources, users without permission. Real processes, real signals, host memory; every
//! frame is compared with the published one. The guarantees are in `docs/failure-semantics.md`;
//! `tests/gpu/engine` tests the same for GPU memory.
//!
//! `make test-long` repeats repeated actions ten times as often.

mod abstracts;
mod access;
mod backlog;
mod discovery;
mod exporters;
mod folders;
mod gop;
mod inflight;
mod killed;
mod labels;
mod layout;
mod limits;
mod names;
mod namespaces;
mod observers;
mod reconnecting;
mod restarts;
mod sandboxes;
mod sets;
mod slow;
mod stalled;
mod waking;
mod writes;

use frameshare_tests::{
    process::{Outcome, Process, TestRun},
    repeat::times,
    skip,
};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    time::Duration,
};

/// Longer than any test takes: a wait for a reader until then is a failure.
const NEVER_MS: u64 = 600_000;
/// Maximum time of a wait that does not count as held up, even on a loaded machine.
const HELD_UP_MS: u64 = 5_000;

/// An exporter that only death or a reader with all credit could stop, and that ends on command.
struct Stream {
    exporter: Process,
    run: TestRun,
}

impl Stream {
    fn start(options: &str) -> Self {
        let run = TestRun::new();
        let mut exporter = run
            .peer(&format!("export --stream s --frames 100000000 --size 20000 --until {} {options}", UNTIL));
        exporter.wait_for("open");
        Self { exporter, run }
    }

    fn read(&self, options: &str) -> Process {
        let mut reader = self.run.peer(&format!("read --stream s --verify yes --quiet yes {options}"));
        reader.wait_for("connected");
        reader
    }

    /// Waits until the exporter reports this event of a process.
    fn wait_for_notice(&mut self, event: &str, pid: u32) -> Value {
        loop {
            let line = self.exporter.wait_for(event);
            if line["pid"] == pid {
                return line;
            }
        }
    }

    /// Waits until this number of further frames has been published.
    fn wait_for_frames(&mut self, frames: u64) {
        let published = |line: Value| line["published"].as_u64().expect("a number");
        let begin = self.exporter.last("progress").map_or(0, published);
        while published(self.exporter.wait_for("progress")) < begin + frames {}
    }

    /// Ends the stream normally.
    fn end(self) -> (Outcome, TestRun) {
        fs::write(self.run.path(UNTIL), "").expect("the folder is ours");
        (self.exporter.expect_success(), self.run)
    }
}

/// Makes a folder in the run, with this owner and mode.
fn folder(run: &TestRun, name: &str, owner: u32, mode: u32) {
    let path = run.path(name);
    fs::create_dir(&path).unwrap();
    chown(&path, Some(owner), Some(owner)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
}

/// The file that ends a [`Stream`].
const UNTIL: &str = "end";

/// Checks the result of a lossless reader: every frame, whole.
fn assert_all_read(reader: Process, published: &Value) {
    let summary = reader.expect_success().summary();
    assert_eq!(
        (&summary["frames"], &summary["lost"], &summary["bad"], &summary["end"]),
        (published, &0.into(), &0.into(), &"eos".into()),
        "{summary}"
    );
}

/// Returns whether an exporter reported this event of a process.
fn find_notice(outcome: &Outcome, event: &str, pid: u32) -> Option<Value> {
    outcome.events(event).into_iter().find(|line| line["pid"] == pid)
}

/// Returns whether a test that changes its user can run; reports it as skipped if not.
fn is_root(test: &str) -> bool {
    skip::is_root(&format!("faults/{test}"))
}

/// A duration between zero and `longest`, different for every number.
fn moment(number: usize, longest: Duration) -> Duration {
    longest.mul_f64((number as f64 * 0.618_034).fract())
}
