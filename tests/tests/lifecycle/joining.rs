// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that join at unusual moments.

use crate::{
    pipelines::{CAPS, Exporter, Reader, SIZE, check, picture, socket},
    stage::Stage,
};

const FRAMES: u64 = 50;

fn film(numbers: impl Iterator<Item = u64>) -> Vec<u8> {
    numbers.flat_map(|number| picture(0, number, SIZE)).collect()
}

#[test]
fn readers_that_wait_before_the_first_caps_miss_nothing() {
    let stage = Stage::new();
    // Even before there is an exporter.
    let early = Reader::start(&stage, "s", "policy=lossless");
    let process = stage.gst(&format!(
        "framesharesrc socket-path={} connection-timeout=-1 policy=lossless ! filesink location=read.raw",
        socket(&stage, "s")
    ));
    let exporter = Exporter::start(&stage, "s");
    let here = Reader::start(&stage, "s", "policy=lossless");
    exporter.wait_for_readers(3);

    exporter.push_pictures(0, 1..=FRAMES);
    let ended = std::thread::spawn(move || {
        exporter.end();
        exporter
    });
    for reader in [early, here] {
        let arrivals = reader.rest();
        assert_eq!(check(0, &arrivals), Vec::from_iter(1..=FRAMES));
        assert!(arrivals.iter().all(|arrival| arrival.caps.to_string() == CAPS));
    }
    process.finish_well();
    ended.join().unwrap();
    assert!(stage.read("read.raw") == film(1..=FRAMES));
}

#[test]
fn late_reader_gets_caps_and_every_later_frame() {
    let stage = Stage::new();
    let exporter = Exporter::start(&stage, "s");
    exporter.push_pictures(0, 1..=20);
    exporter.wait_until_published(20);

    let here = Reader::start(&stage, "s", "policy=lossless");
    let process = stage.gst(&format!(
        "framesharesrc socket-path={} policy=lossless ! filesink location=read.raw",
        socket(&stage, "s")
    ));
    exporter.wait_for_readers(2);
    exporter.push_pictures(0, 21..=FRAMES);
    let ended = std::thread::spawn(move || {
        exporter.end();
        exporter
    });
    let arrivals = here.rest();
    assert_eq!(check(0, &arrivals), Vec::from_iter(21..=FRAMES));
    assert_eq!((arrivals[0].lost_before, arrivals[0].caps.to_string()), (0, CAPS.to_owned()));
    process.finish_well();
    ended.join().unwrap();
    assert!(stage.read("read.raw") == film(21..=FRAMES));
}

#[test]
fn reader_joining_after_the_end_gets_the_end() {
    let stage = Stage::new();
    let exporter = Exporter::start(&stage, "s");
    exporter.push_pictures(0, 1..=FRAMES);
    exporter.end();

    assert!(Reader::start(&stage, "s", "").rest().is_empty());
    stage.gst(&format!("framesharesrc socket-path={} ! fakesink", socket(&stage, "s"))).finish_well();
    // The exporter still serves the next reader.
    assert!(Reader::start(&stage, "s", "policy=lossless").rest().is_empty());
    exporter.wait_for_readers(0);
}

#[test]
fn reader_without_exporter_reports_it() {
    let stage = Stage::new();
    let exporter = Exporter::start(&stage, "s");
    exporter.push_pictures(0, 1..=1);
    exporter.end();
    drop(exporter);
    let error = stage
        .gst(&format!("framesharesrc socket-path={} connection-timeout=0 ! fakesink", socket(&stage, "s")))
        .finish_badly();
    assert!(error.contains("s.sock"), "{error}");
}
