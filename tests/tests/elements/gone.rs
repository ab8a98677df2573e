// SPDX-License-Identifier: MIT OR Apache-2.0

//! Killed and restarted processes.

use super::{NV12, PICTURE, stage::Stage};

#[test]
fn killed_reader_with_all_frames_delays_no_other() {
    let stage = Stage::new();
    let _exporter = stage.gst(&format!(
        "videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s reader-timeout=60000000000"
    ));
    let mut hoarder = stage.peer("read --stream s --policy lossless --hoard 4");
    hoarder.wait_for("hoarding");
    // The exporter now waits for the first reader, and the other reader with it.
    let mut other = stage.peer("read --stream s --policy lossless --frames 100");
    other.wait_for("connected");
    hoarder.kill();
    let outcome = other.finish_well();
    assert_eq!(outcome.summary()["lost"], 0);
}

#[test]
fn reader_beyond_timeout_is_evicted() {
    let stage = Stage::new();
    let _exporter = stage.gst(&format!(
        "videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s reader-timeout=3000000000"
    ));
    let mut hoarder = stage.peer("read --stream s --policy lossless --hoard 4");
    hoarder.wait_for("hoarding");
    stage.peer("read --stream s --policy lossless --frames 50").finish_well();
}

#[test]
fn killed_exporter_is_an_error_and_not_eos() {
    let stage = Stage::new();
    let mut exporter = stage.gst(&format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s"));
    let mut peer = stage.peer("read --stream s");
    let reader = stage.gst("framesharesrc stream=s ! filesink location=seen");
    for _ in 0..20 {
        peer.wait_for("frame");
    }
    // A reader that has not joined yet would wait for an exporter in place of reporting the loss of
    // this one.
    stage.wait_for_bytes("seen");
    exporter.kill();
    let error = reader.finish_badly();
    assert!(error.contains("without ending"), "{error}");
    assert_eq!(peer.finish().summary()["end"].as_str().map(|end| end == "eos"), Some(false));
}

#[test]
fn reconnecting_readers_continue_with_next_exporter() {
    let stage = Stage::new();
    let pipeline = format!("videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s");
    let mut first = stage.gst(&pipeline);
    let mut peer = stage.peer("read --stream s --reconnect yes --frames 100");
    let reader = stage.gst("framesharesrc stream=s reconnect=true num-buffers=150 ! fakesink");
    for _ in 0..20 {
        peer.wait_for("frame");
    }
    first.kill();
    let _second = stage.gst(&pipeline);
    peer.wait_for("reconnected");
    peer.finish_well();
    reader.finish_well();
}

#[test]
fn buffers_held_downstream_outlive_exporter() {
    let stage = Stage::new();
    let exporter = stage.peer("export --stream s --frames 50 --size 100000");
    let reader = stage.peer("read --stream s --policy lossless --hold 3 --verify yes --sum yes");
    let outcome = reader.finish_well();
    exporter.finish_well();
    assert_eq!(outcome.events("frame").len(), 50);
}
