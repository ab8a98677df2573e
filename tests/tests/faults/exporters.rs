// SPDX-License-Identifier: MIT OR Apache-2.0

//! Killed exporters: their readers get an error at once, and keep unchanged frames.

use crate::{Stream, moment, times};
use frameshare_test_pipelines::Pipeline;
use frameshare_tests::process::{PATIENCE, Process, wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// Maximum time until every reader has the error: milliseconds normally, more on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Kills the exporter under five readers of all kinds, once it is ready.
fn dies(stream: Stream, ready: impl FnOnce(&mut Process)) {
    let Stream { mut exporter, run } = stream;
    let read = |options: &str| run.peer(&format!("read --stream s --verify yes --quiet yes {options}"));
    let mut peers = [
        read("--policy lossless"),
        read("--policy latest"),
        read("--policy lossless --hold 3"),
        read("--policy latest --sleep-ms 50 --hold 3"),
    ];
    let pipeline = run.gst("framesharesrc stream=s ! fakesink");
    // Nothing is published before all five are connected.
    peers.iter_mut().for_each(|peer| drop(peer.wait_for("first")));
    ready(&mut exporter);
    // Frames are in flight.
    thread::sleep(Duration::from_millis(200));
    let killed = Instant::now();
    exporter.kill();
    for peer in peers {
        let summary = peer.finish().summary();
        let end = summary["end"].as_str().unwrap();
        assert!(end.contains("exited without closing"), "{summary}");
        assert_eq!((&summary["bad"], &summary["changed"]), (&0.into(), &0.into()), "{summary}");
    }
    let error = pipeline.expect_failure();
    assert!(error.contains("without ending"), "{error}");
    assert!(killed.elapsed() < AT_ONCE, "{:?}", killed.elapsed());
}

#[test]
fn killed_exporter_is_error_and_held_frames_stay_readable() {
    dies(Stream::start("--fps 500 --readers 5"), |_| ());
}

/// The dead exporter's sockets stay open in a forked child, and never hang up.
#[test]
fn forked_child_does_not_hide_exporter_death() {
    let mut child = None;
    dies(Stream::start("--fps 500 --readers 5 --fork yes"), |exporter| {
        child = exporter.wait_for("child")["pid"].as_i64().and_then(|pid| Pid::from_raw(pid as i32));
    });
    kill_process(child.unwrap(), Signal::KILL).expect("the child exists");
}

/// A successor may need the memory.
#[test]
fn reconnecting_reader_frees_memory_of_last_exporter() {
    let Stream { mut exporter, run } = Stream::start("--fps 500 --readers 1");
    let mut reader = run.peer("read --stream s --quiet yes --reconnect yes");
    reader.wait_for("first");
    let maps = || fs::read_to_string(format!("/proc/{}/maps", reader.pid())).expect("it is there");
    let slots = |maps: &str| maps.lines().filter(|line| line.contains("memfd:frameshare-slot")).count();
    assert!(slots(&maps()) > 0);
    exporter.kill();
    wait_until("the reader lives and keeps nothing", || {
        let maps = maps();
        !maps.is_empty() && slots(&maps) == 0
    });
}

/// At any moment of its death, also while a frame is written or published: no reader gets a partial
/// frame, or an end of stream.
#[test]
fn exporter_death_at_any_moment_tears_no_frame() {
    for number in 0..times(15) {
        let Stream { mut exporter, run } = Stream::start("--size 300000 --readers 2");
        let readers = ["lossless", "latest"].map(|policy| {
            run.peer(&format!(
                "read --stream s --timeout-ms 5000 --verify yes --quiet yes --hold 2 --policy {policy}"
            ))
        });
        thread::sleep(Duration::from_millis(10) + moment(number, Duration::from_millis(60)));
        exporter.kill();
        for reader in readers {
            let outcome = reader.finish();
            // A reader that was not connected yet finds no exporter.
            let Some(summary) = outcome.events("summary").pop() else {
                assert!(!outcome.ok && outcome.stderr.contains("no exporter"), "{}", outcome.stderr);
                continue;
            };
            assert!(summary["end"].as_str().unwrap().contains("exited without closing"), "{summary}");
            assert_eq!((&summary["bad"], &summary["changed"]), (&0.into(), &0.into()), "{summary}");
        }
    }
}

#[test]
fn paused_pipeline_reports_exporter_death() {
    let mut stream = Stream::start("--fps 500 --readers 0");
    let pipeline = Pipeline::new(&format!(
        "framesharesrc socket-path={} ! appsink name=output sync=false max-buffers=1",
        stream.run.socket("s")
    ));
    pipeline.play();
    let output = pipeline.appsink("output");
    let sample = output.try_pull_sample(gst::ClockTime::try_from(PATIENCE).ok()).expect("a frame");
    pipeline.pause();
    stream.exporter.kill();
    let playing = Instant::now();
    pipeline.play();
    let puller = thread::spawn(move || {
        while output.try_pull_sample(gst::ClockTime::from_seconds(1)).is_some() {}
        output.is_eos()
    });
    let message = pipeline.end_message();
    let gst::MessageView::Error(error) = message.view() else { panic!("{message:?} is no error") };
    assert!(error.error().to_string().contains("without ending"), "{error:?}");
    assert!(playing.elapsed() < AT_ONCE, "{:?}", playing.elapsed());
    pipeline.stop();
    puller.join().unwrap();
    assert!(sample.buffer().unwrap().map_readable().unwrap().size() > 0);
}

/// A stopped exporter accepts no connection, but the kernel completes it.
#[test]
fn reader_connecting_to_dying_exporter_fails() {
    let mut stream = Stream::start("--fps 500 --readers 0");
    stream.exporter.suspend();
    let reader = stream.run.peer("read --stream s --timeout-ms 5000");
    thread::sleep(Duration::from_millis(100));
    stream.exporter.kill();
    let error = reader.expect_failure();
    assert!(error.contains("no exporter"), "{error}");
}
