// SPDX-License-Identifier: MIT OR Apache-2.0

//! A thousand cycles of playing and stopping leave nothing behind.

use crate::{
    census::{Census, is_alone},
    pipelines::{Pipeline, init, socket},
    stage::Stage,
};
use gst::prelude::*;
use std::{
    fs,
    sync::{Arc, Mutex},
    thread,
};

/// Number of cycles after which all one-time resources exist: idle threads, slots, types.
const WARM_UP: usize = 20;
const CYCLES: usize = 1000;
/// More than the slots of draining readers and a present one.
const SLOTS: usize = 32;
/// Number of uses of elements before they are made anew.
const USES: usize = 10;

/// Plays `framesharesink` and `framesharesrc` until three frames have arrived, and stops them.
struct Couple {
    exporter: Pipeline,
    reader: Pipeline,
}

impl Couple {
    fn new(stage: &Stage) -> Self {
        let socket = socket(stage, "s");
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
    let output = reader.element("output").downcast::<gst_app::AppSink>().expect("it is an appsink");
    for _ in 0..3 {
        let sample = output.try_pull_sample(gst::ClockTime::from_seconds(60));
        assert!(sample.is_some(), "no frame came: {:?}", reader.error());
    }
}

#[test]
fn a_thousand_cycles_of_both_elements_leave_nothing_behind() {
    if !is_alone("cycles::a_thousand_cycles_of_both_elements_leave_nothing_behind") {
        return;
    }
    let stage = Stage::new();
    let bare = Census::here(&stage);
    let run = |cycles: usize| {
        for _ in 0..cycles / USES {
            let couple = Couple::new(&stage);
            (0..USES).for_each(|number| couple.cycle(number));
        }
    };
    run(WARM_UP);
    assert!(!fs::exists(socket(&stage, "s")).unwrap(), "the socket outlives the sink");
    let before = bare.at_rest(&stage);
    run(CYCLES);
    before.compare_here(&stage);
}

#[test]
fn a_thousand_readers_leave_nothing_behind_on_either_side() {
    if !is_alone("cycles::a_thousand_readers_leave_nothing_behind_on_either_side") {
        return;
    }
    init();
    let stage = Stage::new();
    let socket = socket(&stage, "s");
    let mut exporter = stage.peer(&format!(
        "export --socket {socket} --frames 100000000 --fps 2000 --size 4096 --readers 0 --max-slots {SLOTS}"
    ));
    exporter.wait_for("open");
    let bare = Census::here(&stage);
    let run = |cycles: usize| {
        for _ in 0..cycles / USES {
            let reader = source(&socket);
            for _ in 0..USES {
                reader.play();
                three_frames(&reader);
                reader.stop();
            }
        }
    };
    run(WARM_UP);
    let (here, there) = (bare.at_rest(&stage), Census::of(exporter.pid(), &stage).with_slots(SLOTS));
    run(CYCLES);
    here.compare_here(&stage);
    there.compare_of(exporter.pid(), &stage);
}

/// Negative control: one leak of each kind is noticed.
#[test]
fn leaks_are_noticed() {
    if !is_alone("cycles::leaks_are_noticed") {
        return;
    }
    let stage = Stage::new();
    let bare = Census::here(&stage);
    let couple = Couple::new(&stage);
    (0..WARM_UP).for_each(|number| couple.cycle(number));
    let before = bare.at_rest(&stage);
    let noticed = |what: &str| {
        let growth = before.growth(&Census::here(&stage));
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
    noticed("mappings");
    assert!(kept.lock().unwrap().take().is_some());
    before.compare_here(&stage);

    let file = fs::File::open("/dev/null").unwrap();
    noticed("descriptors");
    drop(file);
    let (end, waits) = std::sync::mpsc::channel::<()>();
    let thread = thread::spawn(move || waits.recv());
    noticed("threads");
    drop(end);
    let _ = thread.join().unwrap();
    fs::write(stage.path("frameshare/other.sock"), "").unwrap();
    noticed("file other.sock");
    fs::remove_file(stage.path("frameshare/other.sock")).unwrap();
    before.compare_here(&stage);
}
