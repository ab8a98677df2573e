// SPDX-License-Identifier: MIT OR Apache-2.0

//! Programs that take URIs.

use super::*;
use frameshare_tests::{
    process::{Process, wait_until},
    skip::skip,
};

/// Starts an endless stream.
pub(super) fn live(run: &TestRun) -> Process {
    let exporter = run
        .gst(&format!("videotestsrc is-live=true {PICTURE} ! {NV12} ! framesharesink stream=s max-slots=64"));
    let socket = run.path("frameshare/s.sock");
    wait_until("the stream", || socket.exists());
    exporter
}

pub(super) fn is_installed(test: &str, program: &str) -> bool {
    let is = std::process::Command::new(program).arg("--version").output().is_ok();
    if !is {
        skip(test, &format!("no {program} here"));
    }
    is
}

#[test]
fn gst_launch_reads_uri_with_properties() {
    let run = TestRun::new();
    let expected = expected(&run, 50);
    let exporter = run.gst(&format!(
        "videotestsrc num-buffers=50 {PICTURE} ! {NV12} ! framesharesink stream=s wait-for-connection=true sync=false"
    ));
    let uri = "frameshare://s?policy=lossless&connection-timeout=20000000000";
    run.gst(&format!("uridecodebin uri={uri} ! filesink location=read.raw")).expect_success();
    exporter.expect_success();
    assert!(checksums(&run.read("read.raw"), NV12_SIZE) == expected);
}

#[test]
fn gst_discoverer_finds_caps_of_live_stream() {
    if !is_installed("gst_discoverer", "gst-discoverer-1.0") {
        return;
    }
    let run = TestRun::new();
    let _exporter = live(&run);
    let outcome = run.command("gst-discoverer-1.0 -v frameshare://s").expect_success();
    let text = outcome.lines.join("\n");
    assert!(text.contains("format=(string)NV12") && text.contains("Width: 320"), "{text}");
}

#[test]
fn gst_play_plays_uri() {
    if !is_installed("gst_play", "gst-play-1.0") {
        return;
    }
    let run = TestRun::new();
    let exporter = run.gst(&format!(
        "videotestsrc num-buffers=30 {PICTURE} ! {NV12} ! framesharesink stream=s wait-for-connection=true"
    ));
    let uri = "frameshare://s?policy=lossless&connection-timeout=20000000000";
    let outcome = run
        .command(&format!("gst-play-1.0 --no-interactive --videosink=fakevideosink {uri}"))
        .expect_success();
    exporter.expect_success();
    let text = outcome.lines.join("\n");
    assert!(text.contains("end of play list") && !text.contains("ERROR"), "{text}");
}
