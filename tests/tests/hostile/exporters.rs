// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile exporters, against a reader of the engine and against the source.

use super::{WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS, for_each_attack};
use frameshare_tests::{
    process::{Outcome, Process, TestRun},
    skip,
};
use serde_json::Value;

/// Frames that the honest exporter publishes.
const HONEST: usize = 100;

/// Runs a reader against an exporter. Returns what the exporter reports, and the reader's result.
fn against(reader: impl Fn(&TestRun, &str) -> Process, name: &str) -> (Value, Outcome) {
    let run = TestRun::new();
    let path = run.path("s.sock");
    let mut exporter = run.hostile(&format!("exporter {} {name} stay", path.display()));
    exporter.wait_for("open");
    let reader = reader(&run, &path.display().to_string());
    let done = exporter.wait_for("done");
    let outcome = reader.finish();
    exporter.kill();
    println!("{name}: {done}");
    (done, outcome)
}

/// Runs a reader against every attack, and lets `check` judge the result. Before that, it gets the
/// frames of the same exporter without an attack: it refuses no handshake.
fn against_all(
    reader: impl Fn(&TestRun, &str) -> Process + Sync,
    frames: impl Fn(&Outcome) -> usize,
    check: impl Fn(&str, &Value, &Outcome) + Sync,
) {
    let (_, honest) = against(&reader, "honest");
    assert!(honest.ok && frames(&honest) == HONEST, "{} frames: {}", frames(&honest), honest.stderr);
    for_each_attack("exporter", |name| {
        let (done, outcome) = against(&reader, name);
        let must_give_up = done["fate"] == "GivesUp" && done["refused"] == false;
        assert!(!must_give_up || done["gave_up"] == true, "{name}: the reader goes on\n{}", outcome.stderr);
        assert_eq!(outcome.signal, None, "{name}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("panicked"), "{name}: {}", outcome.stderr);
        check(name, &done, &outcome);
    });
}

fn reader_survives(kernel: &str) {
    let reader = |run: &TestRun, path: &str| {
        run.peer_by(kernel, &format!("read --socket {path} --sum yes --timeout-ms 2000 --hold 1"))
    };
    let frames = |outcome: &Outcome| outcome.events("frame").len();
    against_all(reader, frames, |name, done, outcome| {
        let is_connected = !outcome.events("connected").is_empty();
        assert!(done["fate"] != "GoesOn" || is_connected, "{name}: refused: {}", outcome.stderr);
        assert!(!outcome.ok, "{name}: it took the stream for a good one");
        let end = outcome.events("summary").pop().map(|summary| summary["end"].to_string());
        let said = end.unwrap_or_else(|| outcome.stderr.trim_end().to_owned());
        assert!(!said.contains(char::is_control) && (10..2000).contains(&said.len()), "{name}: {said:?}");
    });
}

fn source_survives(kernel: &str) {
    let source = |run: &TestRun, path: &str| {
        let pipeline = format!(
            "framesharesrc socket-path={path} connection-timeout=2000000000 ! fakesink dump=true sync=false"
        );
        run.gst_by(&format!("{kernel} env G_DEBUG=fatal-criticals"), &pipeline)
    };
    // Each buffer is printed from its first byte on.
    let frames =
        |outcome: &Outcome| outcome.lines.iter().filter(|line| line.starts_with("00000000 ")).count();
    against_all(source, frames, |name, _, outcome| {
        assert!(!outcome.ok && outcome.stderr.contains("ERROR"), "{name}: {}", outcome.stderr);
        // A critical is an error of the caller in GStreamer's view.
        assert!(!outcome.stderr.contains("CRITICAL"), "{name}: {}", outcome.stderr);
    });
}

#[test]
fn reader_survives_hostile_exporters() {
    if skip::has_passrights("hostile/reader_survives_hostile_exporters") {
        reader_survives(WITH_PASSRIGHTS);
    }
}

#[test]
fn reader_survives_hostile_exporters_before_linux_6_16() {
    reader_survives(WITHOUT_PASSRIGHTS);
}

#[test]
fn source_survives_hostile_exporters() {
    if skip::has_passrights("hostile/source_survives_hostile_exporters") {
        source_survives(WITH_PASSRIGHTS);
    }
}

#[test]
fn source_survives_hostile_exporters_before_linux_6_16() {
    source_survives(WITHOUT_PASSRIGHTS);
}
