// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of the elements, and their advice.

use super::{NV12, stage::Stage};

#[test]
fn source_without_exporter_gives_advice() {
    let stage = Stage::new();
    let error =
        stage.gst("framesharesrc stream=missing connection-timeout=200000000 ! fakesink").finish_badly();
    assert!(error.contains("missing.sock"), "{error}");
    assert!(error.contains("framesharesink") && error.contains("connection-timeout"), "{error}");
}

#[test]
fn invalid_name_is_refused_at_once() {
    let stage = Stage::new();
    for element in ["framesharesrc stream=a/b ! fakesink", "videotestsrc ! framesharesink stream=a/b"] {
        let error = stage.gst(element).finish_badly();
        assert!(error.contains("a/b") && error.contains("A-Z"), "{error}");
    }
    for element in ["framesharesrc ! fakesink", "videotestsrc ! framesharesink"] {
        let error = stage.gst(element).finish_badly();
        assert!(error.contains("stream") && error.contains("socket-path"), "{error}");
    }
}

#[test]
fn name_in_use_is_refused_with_its_holder() {
    let stage = Stage::new();
    let holder = stage.gst(&format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s"));
    stage.peer("read --stream s --frames 1").finish_well();
    let error = stage.gst("videotestsrc ! framesharesink stream=s").finish_badly();
    assert!(error.contains(&holder.pid().to_string()), "{error}");
    stage.peer("read --stream s --frames 1").finish_well();
}

#[test]
fn stale_socket_is_taken_over() {
    let stage = Stage::new();
    let exporter = format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s");
    let mut first = stage.gst(&exporter);
    stage.peer("read --stream s --frames 1").finish_well();
    first.kill();
    assert!(stage.path("frameshare/s.sock").exists());
    let _second = stage.gst(&exporter);
    stage.peer("read --stream s --frames 1").finish_well();
}

#[test]
fn refused_lossless_reader_is_an_error() {
    let stage = Stage::new();
    let _exporter = stage
        .gst(&format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s lossless-readers=none"));
    let error = stage.gst("framesharesrc stream=s policy=lossless ! fakesink").finish_badly();
    assert!(error.contains("lossless"), "{error}");
    stage.peer("read --stream s --frames 1").finish_well();
}

#[test]
fn socket_without_permission_is_named() {
    let stage = Stage::new();
    let error = stage
        .gst("framesharesrc socket-path=/proc/nowhere/s.sock connection-timeout=0 ! fakesink")
        .finish_badly();
    assert!(error.contains("/proc/nowhere/s.sock"), "{error}");
}
