// SPDX-License-Identifier: MIT OR Apache-2.0

//! A slow reader beside fast ones.

use crate::{HELD_UP_MS, NEVER_MS, Stream, UNTIL, assert_all_read, find_notice, is_root};
use frameshare_tests::process::{Process, TestRun};
use serde_json::Value;

/// At a frame a second it loses nearly all of them; those that it gets are whole.
#[test]
fn slow_latest_reader_does_not_affect_lossless() {
    let mut stream = Stream::start(&format!("--fps 500 --readers 3 --reader-timeout-ms {NEVER_MS}"));
    let witnesses = [(); 2].map(|()| stream.read("--policy lossless"));
    let mut slow = stream.read("--policy latest --sleep-ms 1000");
    slow.wait_for("first");
    stream.wait_for_frames(1000);
    let pid = slow.pid();
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "{summary}");
    assert!(find_notice(&outcome, "blocking", pid).is_none());
    for witness in witnesses {
        assert_all_read(witness, &summary["published"]);
    }
    let slow = slow.expect_success().summary();
    assert_eq!(slow["bad"], 0, "{slow}");
    assert!(slow["lost"].as_u64() > Some(500), "{slow}");
}

const SLOW: &str = "--policy latest --sleep-ms 100 --latency yes --frames 40";

/// Checks the age of frames when slow readers take them: at `max-queued=1` at most two frame
/// periods. The control keeps 16 frames, and gets those that are at least eight times as old. Its
/// own figure makes up for a busy machine.
fn assert_recent(recent: impl IntoIterator<Item = Process>, control: Process) {
    let median = |summary: &Value| summary["p50_us"].as_u64().expect("a number");
    let old = control.expect_success().summary();
    for reader in recent {
        let summary = reader.expect_success().summary();
        assert!(4 * median(&summary) <= median(&old), "{summary}, control {old}");
        assert_eq!(summary["bad"], 0, "{summary}");
    }
}

/// A slow `latest` reader gets frames that are at most `max-queued + 1` frame periods old, whatever
/// its credit.
#[test]
fn slow_latest_reader_gets_recent_frames() {
    let stream = Stream::start("--fps 30 --readers 4");
    let recent = [1, 4, 16].map(|held| stream.read(&format!("{SLOW} --max-held {held} --max-queued 1")));
    let control = stream.read(&format!("{SLOW} --max-held 16 --max-queued 16"));
    assert_recent(recent, control);
    let _ = stream.end();
}

/// The same for readers of another user.
#[test]
fn slow_reader_of_another_user_gets_recent_frames() {
    if !is_root("slow_reader_of_another_user_gets_recent_frames") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer(&format!(
        "export --socket s.sock --socket-mode 666 --allowed-uids 65534 --frames 100000000 --size 20000 --until {UNTIL} \
         --fps 30 --readers 2"
    ));
    exporter.wait_for("open");
    let read = |queued: u32| {
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let options = format!("{SLOW} --max-held 16 --max-queued {queued}");
        run.peer_by(nobody, &format!("read --socket s.sock --verify yes --quiet yes {options}"))
    };
    let (recent, control) = (read(1), read(16));
    assert_recent([recent], control);
    let _ = Stream { exporter, run }.end();
}
