// SPDX-License-Identifier: MIT OR Apache-2.0

//! A lossless reader that pauses: frames wait for it, and the others do not.

use crate::{HELD_UP_MS, NEVER_MS, Stream, UNTIL, assert_all_read, find_notice, is_root};
use frameshare_tests::process::TestRun;
use std::{thread::sleep, time::Duration};

/// A live stream so slow that the 64 frames of a `latest` reader last for four seconds, which a
/// busy machine needs. A backlog is limited by its slots, not by time.
const LIVE: &str =
    "--fps 15 --slow-readers queue-then-disconnect --max-queued-time-ms 60000 --max-held-limit 64";
/// A reader that a busy machine delays by four seconds without a loss.
const NEWEST: &str = "--policy latest --max-held 64 --max-queued 64";

#[test]
fn paused_lossless_reader_gets_every_frame_and_delays_no_other() {
    let mut stream = Stream::start(&format!("{LIVE} --readers 3 --reader-timeout-ms {NEVER_MS}"));
    let witness = stream.read("--policy lossless");
    let newest = stream.read(NEWEST);
    let mut paused = stream.read("--policy lossless");
    paused.wait_for("first");
    for _ in 0..2 {
        paused.suspend();
        sleep(Duration::from_millis(1500));
        paused.resume();
        stream.wait_for_frames(30);
    }
    let pid = paused.pid();
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "the stream stood still: {summary}");
    assert!(find_notice(&outcome, "blocking", pid).is_none());
    assert_all_read(witness, &summary["published"]);
    assert_all_read(newest, &summary["published"]);
    assert_all_read(paused, &summary["published"]);
}

/// Without a backlog the stream stands still for as long as the reader does.
#[test]
fn paused_lossless_reader_delays_a_stream_without_backlog() {
    let mut stream = Stream::start(&format!("--fps 100 --readers 2 --reader-timeout-ms {NEVER_MS}"));
    let witness = stream.read("--policy lossless");
    let mut paused = stream.read("--policy lossless");
    paused.wait_for("first");
    paused.suspend();
    sleep(Duration::from_millis(1500));
    paused.resume();
    stream.wait_for_frames(200);
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() >= Some(1000), "{summary}");
    assert_all_read(witness, &summary["published"]);
    assert_all_read(paused, &summary["published"]);
}

#[test]
fn paused_reader_is_evicted_with_reason() {
    let mut stream =
        Stream::start(&format!("{LIVE} --readers 3 --reader-timeout-ms {NEVER_MS} --max-slots 256"));
    let witness = stream.read("--policy lossless");
    let newest = stream.read(NEWEST);
    let mut stuck = stream.read("--policy lossless");
    stuck.wait_for("first");
    stuck.suspend();
    assert_eq!(stream.wait_for_notice("removed", stuck.pid())["reason"], "TooSlow");
    stream.wait_for_frames(15);
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "the stream stood still: {summary}");
    assert_all_read(witness, &summary["published"]);
    assert_all_read(newest, &summary["published"]);
    stuck.resume();
    let summary = stuck.finish().summary();
    let end = summary["end"].as_str().unwrap();
    assert!(end.contains("frames wait for it"), "{summary}");
    assert_eq!(summary["bad"], 0, "{summary}");
}

#[test]
fn killed_reader_takes_its_backlog_along() {
    let mut stream = Stream::start(&format!("{LIVE} --readers 3 --reader-timeout-ms {NEVER_MS}"));
    let witnesses = [(); 2].map(|()| stream.read("--policy lossless"));
    for _ in 0..3 {
        let mut paused = stream.read("--policy lossless");
        paused.wait_for("first");
        paused.suspend();
        sleep(Duration::from_millis(500));
        let pid = paused.pid();
        paused.kill();
        assert_eq!(stream.wait_for_notice("removed", pid)["reason"], "Stopped");
    }
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "{summary}");
    witnesses.into_iter().for_each(|witness| assert_all_read(witness, &summary["published"]));
}

/// Frames wait for readers of the exporter's own user only, unless the exporter allows more.
#[test]
fn reader_of_another_user_has_no_backlog_unless_allowed() {
    if !is_root("reader_of_another_user_has_no_backlog_unless_allowed") {
        return;
    }
    for (allowed, waits) in [("", true), ("--queue-for-other-users yes", false)] {
        let run = TestRun::new();
        run.open_to_others();
        let mut exporter = run.peer(&format!(
            "export --socket s.sock --socket-mode 666 --allowed-uids 65534 --lossless-readers all --frames 100000000 \
             --size 20000 --until {UNTIL} {LIVE} --readers 1 --reader-timeout-ms {NEVER_MS} {allowed}"
        ));
        exporter.wait_for("open");
        let mut stream = Stream { exporter, run };
        let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
        let mut other =
            stream.run.peer_by(nobody, "read --socket s.sock --verify yes --quiet yes --policy lossless");
        other.wait_for("first");
        other.suspend();
        sleep(Duration::from_secs(2));
        other.resume();
        stream.wait_for_frames(30);
        let (outcome, _run) = stream.end();
        let summary = outcome.summary();
        assert_eq!(summary["longest_wait_ms"].as_u64() >= Some(1000), waits, "{allowed}: {summary}");
        assert_all_read(other, &summary["published"]);
    }
}

/// The last frame takes none of the joining reader's credit for good, so that other users' readers
/// get it, too. A reader that stops right after it delays no other.
#[test]
fn joining_reader_of_another_user_gets_the_last_frame() {
    if !is_root("joining_reader_of_another_user_gets_the_last_frame") {
        return;
    }
    let run = TestRun::new();
    run.open_to_others();
    let mut exporter = run.peer(
        "export --socket s.sock --socket-mode 666 --allowed-uids 65534 --frames 1 --size 20000 --readers 0 \
         --keeps-last yes --end hang",
    );
    exporter.wait_for("open");
    let nobody = "setpriv --reuid 65534 --regid 65534 --clear-groups";
    let read = "read --socket s.sock --verify yes --quiet yes --policy latest";
    run.peer(read).wait_for("first");
    for round in 0..3 {
        let mut other = run.peer_by(nobody, read);
        assert_eq!(other.wait_for("first")["sequence"], 1, "round {round}");
        other.suspend();
        let mut own = run.peer(read);
        assert_eq!(own.wait_for("first")["sequence"], 1, "round {round}");
        own.kill();
        other.kill();
    }
    exporter.kill();
}
