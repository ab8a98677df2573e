// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile exporters, against a reader of the engine and against the source.

use super::{WITH_PASSRIGHTS, WITHOUT_PASSRIGHTS, for_each_attack};
use frameshare_tests::{
    process::{Outcome, Process, TestRun},
    skip,
};

/// Runs a reader against every attack, and lets `check` judge the result.
fn against_all(
    reader: impl Fn(&TestRun, &str) -> Process + Sync,
    check: impl Fn(&str, bool, &Outcome) + Sync,
) {
    for_each_attack("exporter", |name| {
        let run = TestRun::new();
        let path = run.path("s.sock");
        let mut attacker = run.hostile(&format!("exporter {} {name} stay", path.display()));
        attacker.wait_for("open");
        let reader = reader(&run, &path.display().to_string());
        let done = attacker.wait_for("done");
        let outcome = reader.finish();
        attacker.kill();
        println!("{name}: {done}");
        let must_give_up = done["fate"] == "GivesUp" && done["refused"] == false;
        assert!(!must_give_up || done["gave_up"] == true, "{name}: the reader goes on\n{}", outcome.stderr);
        assert_eq!(outcome.signal, None, "{name}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("panicked"), "{name}: {}", outcome.stderr);
        check(name, must_give_up, &outcome);
    });
}

fn reader_survives(kernel: &str) {
    let reader = |run: &TestRun, path: &str| {
        run.peer_by(kernel, &format!("read --socket {path} --sum yes --timeout-ms 2000 --hold 1"))
    };
    against_all(reader, |name, _, outcome| {
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
    against_all(source, |name, _, outcome| {
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
