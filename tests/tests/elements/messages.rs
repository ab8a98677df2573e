// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages that gst-launch-1.0 prints at its default log level.

use super::NV12;
use frameshare::{
    Endpoint,
    observer::{Observer, ReaderState},
};
use frameshare_tests::process::{TestRun, wait_until};
use std::time::Duration;

#[test]
fn gst_launch_prints_address_and_refused_reader() {
    let run = TestRun::new();
    let mut exporter = run
        .gst(&format!("videotestsrc is-live=true ! {NV12} ! framesharesink stream=s lossless-readers=none"));
    run.peer("read --stream s --frames 1").expect_success();
    let refused = run.gst("framesharesrc stream=s policy=lossless ! fakesink");
    let process = refused.pid();
    refused.expect_failure();
    let expected = format!("Refused process {process} of user");
    while !exporter.next_line().contains(&expected) {}
    exporter.interrupt();
    let outcome = exporter.finish();
    assert_eq!(outcome.signal, None);
    let printed = format!("{}\n{}", outcome.lines.join("\n"), outcome.stderr);
    assert!(printed.contains("to read: framesharesrc stream=s"), "{printed}");
}

/// The name says which program and which of its pipelines holds frames.
#[test]
fn evicted_reader_is_printed_with_program_and_pipeline() {
    let run = TestRun::new();
    let mut exporter = run.gst(&format!(
        "videotestsrc is-live=true ! {NV12} ! \
         framesharesink stream=s max-queued-time=2000000000 slow-readers=disconnect"
    ));
    let reader = run.gst("framesharesrc name=door stream=s policy=lossless ! filesink location=read.raw");
    run.wait_for_bytes("read.raw");
    reader.suspend();
    let process = reader.pid();
    let expected = format!("reader gst-launch-1.0 pipeline0/door (process {process} of user");
    while !exporter.next_line().contains(&expected) {}
    // It goes on, and stops beside the stopped reader.
    exporter.interrupt();
    assert_eq!(exporter.finish().signal, None);
}

/// The allocators of the source live as long as the process.
#[test]
fn tracer_of_leaks_finds_nothing() {
    let run = TestRun::new();
    let traced = "env GST_TRACERS=leaks GST_DEBUG=GST_TRACER:7 GST_DEBUG_NO_COLOR=1";
    let exporter = run.gst_by(
        traced,
        &format!("videotestsrc num-buffers=20 ! {NV12} ! framesharesink stream=s wait-for-connection=true"),
    );
    let reader = run.gst_by(traced, "framesharesrc stream=s policy=lossless ! videoconvert ! fakesink");
    for process in [reader, exporter] {
        let stderr = process.expect_success().stderr;
        assert!(stderr.contains("object-alive.class"), "nothing is traced: {stderr}");
        // The format of these records is printed, too.
        let mut records = stderr.split("object-alive, type-name=(string)").skip(1);
        let alive = records.find(|record| !record.starts_with('%'));
        assert_eq!(alive, None, "{stderr}");
    }
}

/// A copy of a few kilobytes costs less than the transfer, as of audio that `filesink` holds.
#[test]
fn copies_of_audio_are_not_reported() {
    let run = TestRun::new();
    let _exporter = run.gst("audiotestsrc is-live=true ! audioconvert ! framesharesink stream=s");
    let outcome = run
        .gst("framesharesrc stream=s policy=lossless num-buffers=100 ! wavenc ! filesink location=sound.wav")
        .expect_success();
    let printed = format!("{}{}", outcome.lines.join("\n"), outcome.stderr);
    assert!(!printed.contains("copied"), "{printed}");
}

/// A sink that synchronizes complains if the source cannot hold as many frames as its latency
/// spans.
#[test]
fn latency_suits_synchronized_sink_at_any_rate() {
    let run = TestRun::new();
    let complains = |rate: u32, properties: &str| {
        let source = format!("framesharesrc stream=s{rate} connection-timeout=60000000000 {properties}");
        let read = format!("{source} num-buffers=30 ! fakesink sync=true");
        // The first one joins as soon as it can, before the rate is known perhaps.
        let early = run.gst(&read);
        let _exporter = run.gst(&format!(
            "videotestsrc is-live=true ! video/x-raw,format=GRAY8,width=16,height=16,framerate={rate}/1 ! \
             framesharesink stream=s{rate}"
        ));
        run.peer(&format!("read --stream s{rate} --frames 1")).expect_success();
        let late = run.gst(&read);
        [early, late].map(|reader| {
            let outcome = reader.expect_success();
            format!("{}{}", outcome.lines.join(" "), outcome.stderr).contains("queues")
        })
    };
    for rate in [30, 75, 100, 240] {
        assert_eq!(complains(rate, ""), [false, false], "{rate} frames a second");
    }
    // Negative control.
    assert_eq!(complains(120, "max-held=3"), [true, true]);
}

/// Each viewer has a connection and holds a frame, while the stream goes on.
#[test]
fn hundred_viewers_read_a_stream_with_default_settings() {
    const VIEWERS: usize = 100;
    let run = TestRun::new();
    let camera = NV12.replace("100/1", "30/1");
    let _exporter = run.gst(&format!("videotestsrc is-live=true ! {camera} ! framesharesink stream=s"));
    run.peer("read --stream s --frames 1").expect_success();
    let endpoint = Endpoint::at(run.socket("s")).unwrap();
    let mut observer = Observer::connect(&endpoint, Duration::from_secs(20)).unwrap();
    // Each holds its last frame, and has got some more since.
    let reads = |reader: &&ReaderState| reader.held > 0 && reader.sent > 3;
    let mut viewers = Vec::new();
    // In groups: frames that wait for a starting process leave less credit to the next readers.
    for group in 1..=VIEWERS / 10 {
        let branch = "framesharesrc stream=s ! fakesink enable-last-sample=true silent=true ";
        viewers.push(run.gst(&branch.repeat(10)));
        wait_until("all viewers", || {
            observer.snapshot().unwrap().readers.iter().filter(reads).count() == group * 10
        });
    }
    let snapshot = observer.latest();
    assert_eq!(snapshot.readers.len(), VIEWERS);
    // Those of the last group may get less, while it starts.
    let with = |credit: u32| snapshot.readers.iter().filter(|reader| reader.credit >= credit).count();
    assert!(with(3) >= VIEWERS - 10 && with(2) == VIEWERS, "{snapshot:?}");
    for viewer in &mut viewers {
        assert!(!viewer.has_exited());
    }
}
