// SPDX-License-Identifier: MIT OR Apache-2.0

//! Killed and restarted processes.

use super::{NV12, PICTURE};
use frameshare_tests::process::TestRun;

#[test]
fn killed_reader_with_all_frames_delays_no_other() {
    let run = TestRun::new();
    let _exporter = run.gst(&format!(
        "videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s reader-timeout=60000000000"
    ));
    let mut hoarder = run.peer("read --stream s --policy lossless --hoard 4");
    hoarder.wait_for("hoarding");
    // The exporter now waits for the first reader, and the other reader with it.
    let mut other = run.peer("read --stream s --policy lossless --frames 100");
    other.wait_for("connected");
    hoarder.kill();
    let outcome = other.expect_success();
    assert_eq!(outcome.summary()["lost"], 0);
}

#[test]
fn reader_beyond_timeout_is_evicted() {
    let run = TestRun::new();
    let _exporter = run.gst(&format!(
        "videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s reader-timeout=3000000000"
    ));
    let mut hoarder = run.peer("read --stream s --policy lossless --hoard 4");
    hoarder.wait_for("hoarding");
    run.peer("read --stream s --policy lossless --frames 50").expect_success();
}

#[test]
fn killed_exporter_is_an_error_and_not_eos() {
    let run = TestRun::new();
    let mut exporter = run.gst(&format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s"));
    let mut peer = run.peer("read --stream s");
    let reader = run.gst("framesharesrc stream=s ! filesink location=seen");
    for _ in 0..20 {
        peer.wait_for("frame");
    }
    // A reader that has not joined yet would wait for an exporter in place of reporting the loss of
    // this one.
    run.wait_for_bytes("seen");
    exporter.kill();
    let error = reader.expect_failure();
    assert!(error.contains("without ending"), "{error}");
    assert_eq!(peer.finish().summary()["end"].as_str().map(|end| end == "eos"), Some(false));
}

#[test]
fn reconnecting_readers_continue_with_next_exporter() {
    let run = TestRun::new();
    let pipeline = format!("videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s");
    let mut first = run.gst(&pipeline);
    let mut peer = run.peer("read --stream s --reconnect yes --frames 100");
    let reader = run.gst("framesharesrc stream=s reconnect=true num-buffers=150 ! fakesink");
    for _ in 0..20 {
        peer.wait_for("frame");
    }
    first.kill();
    let _second = run.gst(&pipeline);
    peer.wait_for("reconnected");
    peer.expect_success();
    reader.expect_success();
}

#[test]
fn buffers_held_downstream_outlive_exporter() {
    let run = TestRun::new();
    let exporter = run.peer("export --stream s --frames 50 --size 100000");
    let reader = run.peer("read --stream s --policy lossless --hold 3 --verify yes --sum yes");
    let outcome = reader.expect_success();
    exporter.expect_success();
    assert_eq!(outcome.events("frame").len(), 50);
}
