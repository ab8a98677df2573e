// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that join at unusual moments.

const FRAMES: u64 = 50;

fn video(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    numbers.flat_map(|number| frame(0, number, SIZE)).collect()
}

#[test]
fn readers_waiting_before_first_caps_miss_no_frame() {
    let run = TestRun::new();
    // Even before there is an exporter.
    let early = Reader::start(&run, "s", "policy=lossless");
    let process = run.gst(&format!(
        "framesharesrc socket-path={} connection-timeout=-1 policy=lossless ! filesink location=read.raw",
        run.socket("s")
    ));
    let exporter = Exporter::start(&run, "s");
    let here = Reader::start(&run, "s", "policy=lossless");
    exporter.wait_for_readers(3);

    exporter.push_frames(0, 1..=FRAMES);
    let ended = std::thread::spawn(move || {
        exporter.end();
        exporter
    });
    for reader in [early, here] {
        let arrivals = reader.rest();
        assert_eq!(check(0, &arrivals), Vec::from_iter(1..=FRAMES));
        assert!(arrivals.iter().all(|arrival| arrival.caps.to_string() == CAPS));
    }
    process.expect_success();
    ended.join().unwrap();
    assert!(run.read("read.raw") == video(1..=FRAMES));
}

#[test]
fn late_reader_gets_caps_and_every_later_frame() {
    let run = TestRun::new();
    let exporter = Exporter::start(&run, "s");
    exporter.push_frames(0, 1..=20);
    exporter.wait_until_published(20);

    let here = Reader::start(&run, "s", "policy=lossless");
    let process = run.gst(&format!(
        "framesharesrc socket-path={} policy=lossless ! filesink location=read.raw",
        run.socket("s")
    ));
    exporter.wait_for_readers(2);
    exporter.push_frames(0, 21..=FRAMES);
    let ended = std::thread::spawn(move || {
        exporter.end();
        exporter
    });
    let arrivals = here.rest();
    assert_eq!(check(0, &arrivals), Vec::from_iter(21..=FRAMES));
    assert_eq!((arrivals[0].lost_before, arrivals[0].caps.to_string()), (0, CAPS.to_owned()));
    process.expect_success();
    ended.join().unwrap();
    assert!(run.read("read.raw") == video(21..=FRAMES));
}

#[test]
fn reader_joining_after_end_gets_eos() {
    let run = TestRun::new();
    let exporter = Exporter::start(&run, "s");
    exporter.push_frames(0, 1..=FRAMES);
    exporter.end();

    assert!(Reader::start(&run, "s", "").rest().is_empty());
    run.gst(&format!("framesharesrc socket-path={} ! fakesink", run.socket("s"))).expect_success();
    // The exporter still serves the next reader.
    assert!(Reader::start(&run, "s", "policy=lossless").rest().is_empty());
    exporter.wait_for_readers(0);
}

#[test]
fn reader_without_exporter_reports_it() {
    let run = TestRun::new();
    let exporter = Exporter::start(&run, "s");
    exporter.push_frames(0, 1..=1);
    exporter.end();
    drop(exporter);
    let error = run
        .gst(&format!("framesharesrc socket-path={} connection-timeout=0 ! fakesink", run.socket("s")))
        .expect_failure();
    assert!(error.contains("s.sock"), "{error}");
}

use frameshare_test_pipelines::{CAPS, Exporter, Reader, SIZE, check, frame};
use frameshare_tests::process::TestRun;
