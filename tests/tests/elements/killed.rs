// SPDX-License-Identifier: MIT OR Apache-2.0

//! Killed and restarted processes.

use super::{NV12, PICTURE};
use frameshare_tests::process::{TestRun, wait_until};
use std::fs;

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
    let reader = run.gst("framesharesrc stream=s connection-timeout=60000000000 ! filesink location=seen");
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

/// The recorder is lossless and so is its codec: the file has each delivered frame, unchanged.
#[test]
fn recorder_of_killed_exporter_completes_its_file() {
    const SIZE: usize = 64 * 48 * 3 / 2;
    let run = TestRun::new();
    let mut exporter = run.gst(
        "videotestsrc is-live=true pattern=ball ! video/x-raw,format=I420,width=64,height=48,framerate=50/1 ! \
         framesharesink stream=s",
    );
    let recorder = run.gst(
        "framesharesrc stream=s connection-timeout=60000000000 policy=lossless on-disconnect=eos ! tee name=frames \
         frames. ! queue ! x264enc pass=quant quantizer=0 ! h264parse ! mp4mux ! filesink location=video.mp4 \
         frames. ! queue ! filesink location=delivered",
    );
    let path = run.path("delivered");
    wait_until("20 frames", || fs::metadata(&path).is_ok_and(|file| file.len() >= 20 * SIZE as u64));
    exporter.kill();
    recorder.expect_success();
    run.gst("filesrc location=video.mp4 ! qtdemux ! h264parse ! avdec_h264 ! filesink location=played")
        .expect_success();
    let [delivered, played] = ["delivered", "played"].map(|name| run.read(name));
    assert!(delivered.len() >= 20 * SIZE && delivered.len().is_multiple_of(SIZE));
    assert!(played == delivered, "{} of {} bytes", played.len(), delivered.len());
}

#[test]
fn reconnecting_readers_continue_with_next_exporter() {
    let run = TestRun::new();
    let pipeline = format!("videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s");
    let mut first = run.gst(&pipeline);
    let mut peer = run.peer("read --stream s --reconnect yes --frames 100");
    let reader = run.gst(
        "framesharesrc stream=s connection-timeout=60000000000 on-disconnect=wait num-buffers=150 ! fakesink",
    );
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
