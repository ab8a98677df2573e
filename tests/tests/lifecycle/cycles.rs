// SPDX-License-Identifier: MIT OR Apache-2.0

//! Cycles of playing and stopping leave nothing behind.

use frameshare_test_pipelines::{Pipeline, init};
use frameshare_tests::{census::Census, process::TestRun, repeat::times};
use gst::prelude::*;
use std::{
    fs,
    process::Command,
    sync::{Arc, Mutex},
    thread,
};

/// Number of cycles after which all one-time resources exist: idle threads, slots, types.
const WARM_UP: usize = 20;
const CYCLES: usize = 200;
/// More than the slots of draining readers and a present one.
const SLOTS: usize = 32;
/// Number of uses of elements before they are made anew.
const USES: usize = 10;

/// Runs a test in a process of its own, without the resources of other tests. Call it first in the
/// test with the test's path in this binary; it returns true in that other process.
fn is_alone(test: &str) -> bool {
    const ALONE: &str = "FRAMESHARE_TEST_ALONE";
    if std::env::var(ALONE).is_ok_and(|name| name == test) {
        // GLib would keep the threads of stopped pipelines for another 15 s.
        gst::glib::ThreadPool::set_max_unused_threads(Some(0));
        return true;
    }
    let own = std::env::current_exe().expect("a test has a path");
    let output = Command::new(own)
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(ALONE, test)
        .output()
        .expect("it runs once more");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("1 passed"), "{out}\n{err}");
    false
}

/// Plays `framesharesink` and `framesharesrc` until three frames have arrived, and stops them.
struct Couple {
    exporter: Pipeline,
    reader: Pipeline,
}

impl Couple {
    fn new(run: &TestRun) -> Self {
        let socket = run.socket("s");
        // At full rate, in slots of the sink's own pool.
        let exporter = format!(
            "videotestsrc ! video/x-raw,format=GRAY8,width=64,height=48 ! \
             framesharesink socket-path={socket} sync=false wait-for-connection=true"
        );
        // The sink itself keeps no frame, so that frames kept by a stopped source are found.
        let reader = format!(
            "framesharesrc name=source socket-path={socket} connection-timeout=60000000000 ! \
             fakesink sync=false enable-last-sample=false num-buffers=3"
        );
        Self { exporter: Pipeline::new(&exporter), reader: Pipeline::new(&reader) }
    }

    fn cycle(&self, number: usize) {
        let mut order = [&self.exporter, &self.reader];
        order.rotate_left(number % 2);
        order.iter().for_each(|pipeline| pipeline.play());
        self.reader.wait_for_end();
        order.rotate_left(number / 2 % 2);
        order.iter().for_each(|pipeline| pipeline.stop());
    }
}

/// A source that is stopped in the middle of the stream.
fn source(socket: &str) -> Pipeline {
    Pipeline::new(&format!(
        "framesharesrc socket-path={socket} connection-timeout=60000000000 ! \
         appsink name=output sync=false max-buffers=2"
    ))
}

fn three_frames(reader: &Pipeline) {
    let output = reader.appsink("output");
    for _ in 0..3 {
        let sample = output.try_pull_sample(gst::ClockTime::from_seconds(60));
        assert!(sample.is_some(), "no frame came: {:?}", reader.error());
    }
}

#[test]
fn element_cycles_leave_no_resources() {
    if !is_alone("cycles::element_cycles_leave_no_resources") {
        return;
    }
    let run = TestRun::new();
    let bare = Census::here(&run);
    let repeat = |cycles: usize| {
        for _ in 0..cycles / USES {
            let couple = Couple::new(&run);
            (0..USES).for_each(|number| couple.cycle(number));
        }
    };
    repeat(WARM_UP);
    assert!(!fs::exists(run.socket("s")).unwrap(), "the socket outlives the sink");
    let before = bare.settled(&run);
    repeat(times(CYCLES));
    before.assert_no_growth_here(&run);
}

#[test]
fn readers_leave_no_resources_on_either_side() {
    if !is_alone("cycles::readers_leave_no_resources_on_either_side") {
        return;
    }
    init();
    let run = TestRun::new();
    let socket = run.socket("s");
    let mut exporter = run.peer(&format!(
        "export --socket {socket} --frames 100000000 --fps 2000 --size 4096 --readers 0 --max-slots {SLOTS}"
    ));
    exporter.wait_for("open");
    let bare = Census::here(&run);
    let repeat = |cycles: usize| {
        for _ in 0..cycles / USES {
            let reader = source(&socket);
            for _ in 0..USES {
                reader.play();
                three_frames(&reader);
                reader.stop();
            }
        }
    };
    repeat(WARM_UP);
    let (here, there) = (bare.settled(&run), Census::in_run(exporter.pid(), &run).with_slots(SLOTS));
    repeat(times(CYCLES));
    here.assert_no_growth_here(&run);
    there.assert_no_growth(exporter.pid(), &run);
}

/// Negative control: one leak of each kind is found.
#[test]
fn leak_of_each_kind_is_found() {
    if !is_alone("cycles::leak_of_each_kind_is_found") {
        return;
    }
    let run = TestRun::new();
    let bare = Census::here(&run);
    let couple = Couple::new(&run);
    (0..WARM_UP).for_each(|number| couple.cycle(number));
    let before = bare.settled(&run);
    let found = |what: &str| {
        let growth = before.growth(&Census::here(&run));
        assert!(growth.iter().any(|line| line.starts_with(what)), "{what} is not in {growth:?}");
    };

    let kept = Arc::new(Mutex::new(None));
    let keep = kept.clone();
    let pad = couple.reader.element("source").static_pad("src").expect("a source has a pad");
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        *keep.lock().unwrap() = info.buffer().cloned();
        gst::PadProbeReturn::Remove
    });
    couple.cycle(0);
    found("mappings");
    assert!(kept.lock().unwrap().take().is_some());
    before.assert_no_growth_here(&run);

    let file = fs::File::open("/dev/null").unwrap();
    found("descriptors");
    drop(file);
    let (end, waits) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || waits.recv());
    found("threads");
    drop(end);
    let _ = thread.join().unwrap();
    fs::write(run.path("frameshare/other.sock"), "").unwrap();
    found("file other.sock");
    fs::remove_file(run.path("frameshare/other.sock")).unwrap();
    before.assert_no_growth_here(&run);
}
