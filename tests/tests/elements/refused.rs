// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of the elements, and their advice.

use super::NV12;
use frameshare_tests::process::TestRun;

#[test]
fn source_without_exporter_gives_advice() {
    let run = TestRun::new();
    let error =
        run.gst("framesharesrc stream=missing connection-timeout=200000000 ! fakesink").expect_failure();
    assert!(error.contains("missing.sock"), "{error}");
    assert!(error.contains("framesharesink") && error.contains("connection-timeout"), "{error}");
}

#[test]
fn invalid_name_is_refused_at_once() {
    let run = TestRun::new();
    for element in ["framesharesrc stream=a/b ! fakesink", "videotestsrc ! framesharesink stream=a/b"] {
        let error = run.gst(element).expect_failure();
        assert!(error.contains("a/b") && error.contains("A-Z"), "{error}");
    }
    for element in ["framesharesrc ! fakesink", "videotestsrc ! framesharesink"] {
        let error = run.gst(element).expect_failure();
        assert!(error.contains("stream") && error.contains("socket-path"), "{error}");
    }
}

#[test]
fn name_in_use_is_refused_with_its_holder() {
    let run = TestRun::new();
    let holder = run.gst(&format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s"));
    run.peer("read --stream s --frames 1").expect_success();
    let error = run.gst("videotestsrc ! framesharesink stream=s").expect_failure();
    assert!(error.contains(&holder.pid().to_string()), "{error}");
    run.peer("read --stream s --frames 1").expect_success();
}

#[test]
fn stale_socket_is_taken_over() {
    let run = TestRun::new();
    let exporter = format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s");
    let mut first = run.gst(&exporter);
    run.peer("read --stream s --frames 1").expect_success();
    first.kill();
    assert!(run.path("frameshare/s.sock").exists());
    let _second = run.gst(&exporter);
    run.peer("read --stream s --frames 1").expect_success();
}

#[test]
fn refused_lossless_reader_is_an_error() {
    let run = TestRun::new();
    let _exporter = run
        .gst(&format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s lossless-readers=none"));
    let error = run.gst("framesharesrc stream=s policy=lossless ! fakesink").expect_failure();
    assert!(error.contains("lossless"), "{error}");
    run.peer("read --stream s --frames 1").expect_success();
}

#[test]
fn socket_without_permission_is_named() {
    let run = TestRun::new();
    let error = run
        .gst("framesharesrc socket-path=/proc/nowhere/s.sock connection-timeout=0 ! fakesink")
        .expect_failure();
    assert!(error.contains("/proc/nowhere/s.sock"), "{error}");
}
