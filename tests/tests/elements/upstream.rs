// SPDX-License-Identifier: MIT OR Apache-2.0

//! Upstream events between processes: the input of a viewer, and reports of late frames.

use frameshare_test_pipelines::Pipeline;
use frameshare_tests::process::{Process, TestRun, wait_until};
use gst::prelude::*;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

/// `navigationtest` draws a cross at the pointer.
const POINTER: &str = "videotestsrc is-live=true pattern=white ! \
     video/x-raw,format=I420,width=64,height=48,framerate=50/1 ! navigationtest ! framesharesink";

/// A reader that counts the frames that are not wholly white.
fn viewer(socket: &str, properties: &str) -> (Pipeline, Arc<AtomicUsize>) {
    let viewer = Pipeline::new(&format!(
        "framesharesrc connection-timeout=60000000000 {properties} socket-path={socket} ! fakesink name=end sync=false qos=false"
    ));
    let marked = Arc::<AtomicUsize>::default();
    let (counted, pad) = (marked.clone(), viewer.element("end").static_pad("sink").unwrap());
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let map = info.buffer().unwrap().map_readable().unwrap();
        let luma = &map[..64 * 48];
        counted.fetch_add(usize::from(luma.iter().any(|value| *value != luma[0])), SeqCst);
        gst::PadProbeReturn::Ok
    });
    viewer.play();
    (viewer, marked)
}

fn point(viewer: &Pipeline) {
    let motion = gst::Structure::builder("application/x-gst-navigation").field("event", "mouse-move");
    let motion = motion.field("pointer_x", 30.0).field("pointer_y", 20.0).build();
    let pad = viewer.element("end").static_pad("sink").unwrap();
    pad.push_event(gst::event::Navigation::new(motion));
}

#[test]
fn pointer_of_a_viewer_reaches_an_element_of_the_exporter() {
    for (accepts, reaches) in [("upstream-events=navigation", true), ("", false)] {
        let run = TestRun::new();
        let socket = run.socket("pointer");
        let exporter = run.gst(&format!("{POINTER} socket-path={socket} {accepts}"));
        let (viewer, marked) = viewer(&socket, "upstream-events=navigation");
        let begin = Instant::now();
        let sent = || {
            point(&viewer);
            thread::sleep(Duration::from_millis(20));
            marked.load(SeqCst) > 0
        };
        if reaches {
            wait_until("a frame with the pointer", sent);
        } else {
            while begin.elapsed() < Duration::from_secs(1) {
                assert!(!sent(), "the exporter accepts no events");
            }
        }
        drop(viewer);
        exporter.interrupt();
        exporter.finish();
    }
}

/// An exporter whose decoder skips the frames that a report says are late, and reports each of them
/// on the bus.
fn skipping(run: &TestRun, socket: &str, properties: &str) -> Process {
    run.command(&format!(
        "gst-launch-1.0 -m videotestsrc is-live=true ! \
         video/x-raw,format=I420,width=64,height=48,framerate=50/1 ! jpegenc ! jpegdec ! \
         framesharesink {properties} socket-path={socket}"
    ))
}

/// Reads with a sink that takes five times the time of a frame for each.
/// Starts a reader that is late: with the default queue its frames would be new enough.
fn slow(run: &TestRun, socket: &str) -> Process {
    run.gst(&format!(
        "framesharesrc connection-timeout=60000000000 upstream-events=qos socket-path={socket} \
         max-held=8 max-queued=6 ! identity sleep-time=100000 ! fakesink sync=true qos=true"
    ))
}

fn is_skip(line: &str) -> bool {
    line.contains("(qos)")
}

#[test]
fn exporter_skips_frames_while_every_reader_is_late() {
    let run = TestRun::new();
    let socket = run.socket("late");
    let mut exporter = skipping(&run, &socket, "upstream-events=qos");
    let late = [(); 2].map(|()| slow(&run, &socket));
    let mut skips = 0;
    while skips < 5 {
        skips += usize::from(is_skip(&exporter.next_line()));
    }
    for process in late.into_iter().chain([exporter]) {
        process.interrupt();
        process.finish();
    }
}

#[test]
fn exporter_skips_no_frame_that_another_reader_takes_in_time() {
    for (properties, has_other) in [("upstream-events=qos", true), ("", false)] {
        let run = TestRun::new();
        let socket = run.socket("late");
        let exporter = skipping(&run, &socket, properties);
        let other = has_other.then(|| {
            let mut other = run.peer(&format!("read --socket {socket} --quiet yes"));
            other.wait_for("first");
            other
        });
        let late = slow(&run, &socket);
        thread::sleep(Duration::from_secs(3));
        late.interrupt();
        late.finish();
        if let Some(mut other) = other {
            other.kill();
        }
        exporter.interrupt();
        let skips = exporter.finish().lines.iter().filter(|line| is_skip(line)).count();
        assert_eq!(skips, 0, "frames are skipped with {properties:?}");
    }
}
