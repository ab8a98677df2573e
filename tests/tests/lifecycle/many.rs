// SPDX-License-Identifier: MIT OR Apache-2.0

//! Many sinks and sources.

use frameshare_test_pipelines::{Exporter, Reader, SIZE, check, frame};
use frameshare_tests::process::TestRun;
use std::thread;

const STREAMS: usize = 6;
const READERS: u32 = 4;
const FRAMES: u64 = 60;

fn name(stream: usize) -> String {
    format!("s{stream}")
}

fn video(stream: usize) -> Vec<u8> {
    (1..=FRAMES).flat_map(|number| frame(stream, number, SIZE)).collect()
}

/// Publishes every stream at once, each as fast as its readers take it.
fn publish(exporters: Vec<Exporter>) -> Vec<thread::JoinHandle<Exporter>> {
    let publish = |(stream, exporter): (usize, Exporter)| {
        thread::spawn(move || {
            exporter.push_frames(stream, 1..=FRAMES - 1);
            exporter.wait_until_published(FRAMES - 1);
            // A `latest` reader with all its credit in use loses a new frame; it must get the last
            // one.
            exporter.wait_for_credit();
            exporter.push(frame(stream, FRAMES, SIZE));
            exporter.end();
            exporter
        })
    };
    exporters.into_iter().enumerate().map(publish).collect()
}

#[test]
fn many_sinks_and_sources_of_one_process_do_not_mix() {
    let run = TestRun::new();
    let exporters = Vec::from_iter((0..STREAMS).map(|stream| Exporter::start(&run, &name(stream))));
    let mut readers = Vec::new();
    for stream in 0..STREAMS {
        for reader in 0..READERS {
            let is_lossless = reader % 2 == 0;
            let policy = if is_lossless { "policy=lossless" } else { "policy=latest" };
            readers.push((stream, is_lossless, Reader::start(&run, &name(stream), policy)));
        }
    }
    exporters.iter().for_each(|exporter| exporter.wait_for_readers(READERS));

    let published = publish(exporters);
    let checks = readers.into_iter().map(|(stream, is_lossless, reader)| {
        thread::spawn(move || {
            let arrivals = reader.rest();
            let numbers = check(stream, &arrivals);
            let lost = arrivals.iter().map(|arrival| arrival.lost_before).sum::<u64>();
            assert_eq!(lost + numbers.len() as u64, FRAMES, "of stream {stream}");
            // The newest frame is never lost.
            assert_eq!(numbers.last(), Some(&FRAMES));
            assert!(!is_lossless || lost == 0, "{lost} frames of stream {stream} lost");
        })
    });
    for check in Vec::from_iter(checks) {
        check.join().unwrap();
    }
    for exporter in published {
        exporter.join().unwrap();
    }
}

#[test]
fn many_sinks_and_sources_of_several_processes_do_not_mix() {
    let run = TestRun::new();
    let exporters = Vec::from_iter((0..STREAMS).map(|stream| Exporter::start(&run, &name(stream))));
    // Each process reads all streams.
    let process = |reader: u32| {
        let branches = (0..STREAMS).map(|stream| {
            format!(
                "framesharesrc socket-path={} policy=lossless ! filesink location=read{reader}-{stream}.raw",
                run.socket(&name(stream))
            )
        });
        run.gst(&Vec::from_iter(branches).join(" "))
    };
    let processes = Vec::from_iter((0..READERS).map(process));
    exporters.iter().for_each(|exporter| exporter.wait_for_readers(READERS));

    let published = publish(exporters);
    for process in processes {
        process.expect_success();
    }
    for exporter in published {
        exporter.join().unwrap();
    }
    for stream in 0..STREAMS {
        let video = video(stream);
        for reader in 0..READERS {
            assert!(run.read(format!("read{reader}-{stream}.raw")) == video, "{reader} of stream {stream}");
        }
    }
}

/// Every process but the first reads one stream and shares it again as the next.
#[test]
fn frames_relayed_by_three_processes_are_unchanged() {
    let run = TestRun::new();
    let first = Exporter::start(&run, &name(0));
    let relay = |stream: usize| {
        run.gst(&format!(
            "framesharesrc socket-path={} policy=lossless connection-timeout=-1 ! \
             framesharesink socket-path={} sync=false wait-for-connection=true",
            run.socket(&name(stream)),
            run.socket(&name(stream + 1))
        ))
    };
    let relays = Vec::from_iter((0..3).map(relay));
    let last = Reader::start(&run, &name(3), "policy=lossless");
    first.wait_for_readers(1);

    let published = publish(vec![first]);
    assert_eq!(check(0, &last.rest()), Vec::from_iter(1..=FRAMES));
    for relay in relays {
        relay.expect_success();
    }
    for exporter in published {
        exporter.join().unwrap();
    }
}

/// The sinks do not preroll: in a pipeline with a live source whose data depends on another sink's,
/// GStreamer's own elements sometimes deadlock as well if they do.
#[test]
fn one_pipeline_holds_both_ends_of_stream() {
    let run = TestRun::new();
    let socket = run.socket("s");
    let process = run.gst(&format!(
        "videotestsrc num-buffers=50 ! video/x-raw,format=GRAY8,width=64,height=48 ! \
         framesharesink socket-path={socket} wait-for-connection=true sync=false async=false \
         framesharesrc socket-path={socket} policy=lossless ! filesink location=read.raw async=false"
    ));
    process.expect_success();
    assert_eq!(run.read("read.raw").len(), 50 * SIZE);
}
