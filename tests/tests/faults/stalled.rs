// SPDX-License-Identifier: MIT OR Apache-2.0

//! Live readers without progress: stopped, hoarding, paused.

use crate::{HELD_UP_MS, NEVER_MS, Stream, assert_all_read, find_notice};
use frameshare::Policy;
use frameshare_protocol::message::{Reason, ToReader};
use frameshare_test_pipelines::Pipeline;
use frameshare_tests::process::{PATIENCE, Process};
use frameshare_tests::raw::{RawReader, hello};
use serde_json::Value;
use std::time::Instant;

/// Longer than a busy machine delays a witness.
const TIMEOUT_MS: u64 = 6000;

/// Enough for any reader to fall behind.
const MANY: u64 = 500;

#[test]
fn stopped_latest_reader_does_not_affect_others() {
    let mut stream = Stream::start(&format!("--fps 1000 --readers 2 --reader-timeout-ms {NEVER_MS}"));
    let witness = stream.read("--policy lossless");
    let mut stopped = stream.read("--policy latest");
    stopped.wait_for("first");
    stopped.suspend();
    stream.wait_for_frames(MANY);
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "{summary}");
    assert!(find_notice(&outcome, "blocking", stopped.pid()).is_none());
    assert_all_read(witness, &summary["published"]);
    // It wakes after the end, with its remaining frames, and has counted the lost ones.
    stopped.resume();
    let woken = stopped.expect_success().summary();
    assert_eq!((&woken["bad"], &woken["end"]), (&0.into(), &"eos".into()), "{woken}");
    assert_eq!(
        woken["frames"].as_u64().unwrap() + woken["lost"].as_u64().unwrap(),
        summary["published"].as_u64().unwrap()
    );
    assert!(woken["lost"].as_u64() > Some(100), "{woken}");
}

#[test]
fn stopped_latest_reader_survives_200_format_changes() {
    let mut stream = Stream::start("--fps 500 --readers 2 --renew-every 1");
    let witness = stream.read("--policy lossless");
    let mut stopped = stream.read("--policy latest");
    stopped.wait_for("first");
    stopped.suspend();
    stream.wait_for_frames(200);
    stopped.resume();
    // It reads on while formats continue to change: each is of one frame.
    let published = stream.exporter.wait_for("progress")["published"].as_u64().unwrap();
    let format = |line: Value| line["caps"].as_str()?.rsplit_once("part=")?.1.parse::<u64>().ok();
    while format(stopped.wait_for("format")) < Some(published + 200) {}
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
    let summary = stopped.expect_success().summary();
    assert_eq!((&summary["bad"], &summary["end"]), (&0.into(), &"eos".into()), "{summary}");
    assert!(summary["frames"].as_u64() > Some(50), "{summary}");
}

/// A lossless reader holds the stream back for the allowed time, is reported meanwhile, and then
/// evicted.
fn is_evicted(stall: impl FnOnce(&Stream) -> Process) -> Process {
    let mut stream = Stream::start(&format!("--fps 1000 --readers 2 --reader-timeout-ms {TIMEOUT_MS}"));
    let witness = stream.read("--policy lossless");
    let stalled = stall(&stream);
    stream.wait_for_notice("blocking", stalled.pid());
    assert_eq!(stream.wait_for_notice("removed", stalled.pid())["reason"], "TooSlow");
    stream.wait_for_frames(MANY);
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    let waited = summary["longest_wait_ms"].as_u64().unwrap();
    assert!((TIMEOUT_MS..TIMEOUT_MS + HELD_UP_MS).contains(&waited), "{summary}");
    assert_all_read(witness, &summary["published"]);
    stalled
}

#[test]
fn stopped_lossless_reader_is_evicted_with_reason() {
    let stalled = is_evicted(|stream| {
        let mut reader = stream.read("--policy lossless");
        reader.wait_for("first");
        reader.suspend();
        reader
    });
    stalled.resume();
    let outcome = stalled.finish();
    let summary = outcome.summary();
    let end = summary["end"].as_str().unwrap();
    assert!(end.contains("evicted") && end.contains("reader timeout"), "{summary}");
    assert_eq!(summary["bad"], 0, "{summary}");
}

#[test]
fn lossless_reader_without_release_is_evicted() {
    is_evicted(|stream| stream.read("--policy lossless --hoard 4"));
}

#[test]
fn latest_reader_without_release_affects_no_other() {
    let mut stream = Stream::start(&format!("--fps 1000 --readers 2 --reader-timeout-ms {NEVER_MS}"));
    let witness = stream.read("--policy lossless");
    let mut hoarder = stream.read("--policy latest --hoard 4");
    hoarder.wait_for("hoarding");
    stream.wait_for_frames(MANY);
    let (outcome, _run) = stream.end();
    let summary = outcome.summary();
    assert!(summary["longest_wait_ms"].as_u64() < Some(HELD_UP_MS), "{summary}");
    assert_all_read(witness, &summary["published"]);
}

#[test]
fn readers_hold_at_most_the_granted_frames() {
    let mut stream = Stream::start("--fps 500 --readers 1 --max-held-limit 3");
    let mut greedy = stream.run.peer("read --stream s --quiet yes --max-held 64 --hoard 4");
    assert_eq!(greedy.wait_for("connected")["credit"], 3);
    greedy.wait_for("first");
    stream.wait_for_frames(MANY);
    let (outcome, _run) = stream.end();
    assert!(outcome.summary()["published"].as_u64() > Some(50));
    let summary = greedy.expect_success().summary();
    assert_eq!((&summary["frames"], &summary["held"]), (&3.into(), &3.into()), "{summary}");
}

/// Frames of former caps keep their memory while they are held: within limits.
#[test]
fn reader_keeping_retired_memory_is_evicted() {
    let mut stream =
        Stream::start("--fps 50 --readers 2 --renew-every 1 --max-retired-bytes 1000000 --max-held-limit 64");
    let witness = stream.read("--policy lossless");
    let keeper = stream.read("--policy latest --max-held 40 --hold 36");
    assert_eq!(stream.wait_for_notice("removed", keeper.pid())["reason"], "LimitExceeded");
    stream.wait_for_frames(100);
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
    let summary = keeper.finish().summary();
    let end = summary["end"].as_str().unwrap();
    assert!(end.contains("evicted") && end.contains("retired"), "{summary}");
    assert_eq!((&summary["bad"], &summary["changed"]), (&0.into(), &0.into()), "{summary}");
    assert!(summary["held"].as_u64() > Some(0), "{summary}");
}

/// Memory of former caps without held frames, whose imports a reader does not drop, stays allocated
/// as well.
#[test]
fn reader_keeping_imports_is_evicted() {
    let mut stream = Stream::start("--fps 50 --readers 1 --renew-every 1 --max-retired-bytes 1000000");
    let witness = stream.read("--policy lossless");
    stream.wait_for_frames(1);
    let path = stream.run.path("frameshare/s.sock");
    let keeper = RawReader::join(&path, hello(Policy::Latest, 4)).expect("it is admitted");
    let deadline = Instant::now() + PATIENCE;
    let end = loop {
        assert!(Instant::now() < deadline, "it is not evicted");
        let (packet, _) = keeper.channel.receive(PATIENCE).expect("a message").expect("a message in time");
        if let Ok(ToReader::Goodbye { reason, text }) = ToReader::decode(&packet) {
            break (reason, text);
        }
    };
    assert!(end.0 == Reason::LimitExceeded && end.1.contains("retired"), "{end:?}");
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
}

/// `framesharesrc`, lossless, in this process.
fn paused(stream: &Stream) -> Pipeline {
    let pipeline = Pipeline::new(&format!(
        "framesharesrc socket-path={} policy=lossless ! appsink name=output sync=false",
        stream.run.socket("s")
    ));
    pipeline.play();
    let sample = pipeline.appsink("output").try_pull_sample(gst::ClockTime::try_from(PATIENCE).ok());
    assert!(sample.is_some(), "no frame arrived");
    pipeline.pause();
    pipeline
}

#[test]
fn paused_lossless_pipeline_is_evicted_with_reason() {
    let mut stream = Stream::start(&format!("--fps 500 --readers 2 --reader-timeout-ms {TIMEOUT_MS}"));
    let witness = stream.read("--policy lossless");
    let pipeline = paused(&stream);
    stream.wait_for_notice("blocking", std::process::id());
    assert_eq!(stream.wait_for_notice("removed", std::process::id())["reason"], "TooSlow");
    pipeline.play();
    let message = pipeline.end_message();
    let gst::MessageView::Error(error) = message.view() else { panic!("{message:?} is no error") };
    let text = error.error().to_string();
    assert!(text.contains("evicted") && text.contains("reader timeout"), "{text}");
    pipeline.stop();
    let (outcome, _run) = stream.end();
    assert_all_read(witness, &outcome.summary()["published"]);
}
