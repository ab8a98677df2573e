//! Two readers show a frame at the same moment, whatever clocks the three pipelines have and whenever they started.
//!
//! The moment is computed from what a sink gets: base time, timestamp and latency, carried to `CLOCK_MONOTONIC`. When a
//! thread really wakes up depends on the machine, which can only be late; it is looked at too, with the best tenth of all
//! frames.

use super::*;
use gst_base::prelude::*;
use gstframeshare::FrameshareMeta;
use std::{collections::BTreeMap, sync::Arc};

const FRAME: u64 = 20_000_000;
/// The clocks are read one after the other, and drift apart from there on: so far off may a reading be on a busy machine.
const READING: u64 = 10_000_000;
const CAPS: &str = "video/x-raw,format=GRAY8,width=16,height=8,framerate=50/1";

/// A clock of its own that runs at `percent` of the system's pace and reads another time.
fn clock(percent: u64) -> gst::Clock {
    init();
    let clock = glib::Object::builder::<gst::SystemClock>().build();
    clock.set_calibration(clock.internal_time(), gst::ClockTime::from_seconds(5), percent, 100);
    clock.upcast()
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    /// When it is to be shown.
    due: u64,
    /// When the sink did.
    done: u64,
}

/// `framesharesrc ! fakesink sync=true`.
struct Screen {
    pipeline: gst::Pipeline,
    shown: Arc<Mutex<BTreeMap<u64, Shown>>>,
}

impl Screen {
    fn new(path: &Path, clock: Option<gst::Clock>, policy: &str) -> Self {
        init();
        let pipeline = gst::parse::launch(&format!(
            "framesharesrc socket-path={} policy={policy} connection-timeout=20000000000 ! \
             fakesink name=end sync=true signal-handoffs=true enable-last-sample=false",
            path.display()
        ));
        let pipeline = pipeline.unwrap().downcast::<gst::Pipeline>().unwrap();
        if clock.is_some() {
            pipeline.use_clock(clock.as_ref());
        }
        let shown = Arc::new(Mutex::new(BTreeMap::new()));
        let end = pipeline.by_name("end").unwrap();
        let record = shown.clone();
        end.connect("handoff", false, move |values| {
            let done = frameshare::monotonic_ns();
            let sink = values[0].get::<gst_base::BaseSink>().unwrap();
            let buffer = values[1].get::<gst::Buffer>().unwrap();
            // At the end of a test the pipeline loses its clock.
            let running = buffer.pts().unwrap() + sink.base_time()? + sink.latency();
            // All clocks here are the system's, if not at its pace.
            let due = sink.clock()?.unadjust_unlocked(running).nseconds();
            let sequence = buffer.meta::<FrameshareMeta>().unwrap().sequence();
            // What lies before the start has no known moment.
            if buffer.pts().unwrap() > gst::ClockTime::ZERO {
                record.lock().unwrap().insert(sequence, Shown { due, done });
            }
            None
        });
        pipeline.set_state(gst::State::Playing).unwrap();
        Self { pipeline, shown }
    }

    fn wait_for(&self, frames: usize) {
        let begin = Instant::now();
        while self.shown.lock().unwrap().len() < frames {
            assert!(begin.elapsed() < PATIENCE, "{frames} frames: {:?}", self.shown);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn shown(&self) -> BTreeMap<u64, Shown> {
        self.shown.lock().unwrap().clone()
    }

    fn latency(&self) -> u64 {
        let end = self.pipeline.by_name("end").unwrap().downcast::<gst_base::BaseSink>().unwrap();
        end.latency().nseconds()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// A pipeline that shares pictures of [`CAPS`], and the timestamps of those that it published, first to last.
struct Film {
    pipeline: gst::Pipeline,
    path: PathBuf,
    pts: Arc<Mutex<Vec<gst::ClockTime>>>,
    _folder: tempfile::TempDir,
}

impl Film {
    fn new(source: &str, sink: &str, clock: Option<gst::Clock>, latency: Option<gst::ClockTime>) -> Self {
        init();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let pipeline = gst::parse::launch(&format!(
            "videotestsrc {source} ! {CAPS} ! framesharesink name=sink {sink} socket-path={}",
            path.display()
        ));
        let pipeline = pipeline.unwrap().downcast::<gst::Pipeline>().unwrap();
        if clock.is_some() {
            pipeline.use_clock(clock.as_ref());
        }
        let pad = pipeline.by_name("sink").unwrap().static_pad("sink").unwrap();
        let pts = Arc::new(Mutex::new(Vec::new()));
        let record = pts.clone();
        pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
            record.lock().unwrap().extend(info.buffer().and_then(|buffer| buffer.pts()));
            gst::PadProbeReturn::Ok
        });
        if let Some(latency) = latency {
            // As a source does that takes so long to make a picture.
            pad.peer().unwrap().add_probe(gst::PadProbeType::QUERY_UPSTREAM, move |_, info| {
                match info.query_mut().map(|query| query.view_mut()) {
                    Some(gst::QueryViewMut::Latency(query)) => {
                        query.set(true, latency, gst::ClockTime::NONE);
                        gst::PadProbeReturn::Handled
                    }
                    _ => gst::PadProbeReturn::Ok,
                }
            });
        }
        pipeline.set_state(gst::State::Playing).unwrap();
        Self { pipeline, path, pts, _folder: folder }
    }
}

impl Drop for Film {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// Those of the best tenth are no more than this.
fn best(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 10]
}

/// Checks that two screens are to show each frame at the same moment, no more than `apart` ns apart, and do.
fn check(one: &Screen, other: &Screen, apart: u64) -> usize {
    let (one, other) = (one.shown(), other.shown());
    let both =
        one.iter().filter_map(|(sequence, shown)| Some((shown, other.get(sequence)?))).collect::<Vec<_>>();
    for (one, other) in &both {
        assert!(one.due.abs_diff(other.due) <= apart, "{one:?} {other:?}");
    }
    let really = best(both.iter().map(|(one, other)| one.done.abs_diff(other.done)).collect());
    assert!(really < FRAME / 2, "{really} ns lie between them");
    let late = best(both.iter().map(|(one, _)| one.done.abs_diff(one.due)).collect());
    assert!(late < FRAME / 2, "shown {late} ns off");
    both.len()
}

#[test]
fn frames_of_a_live_source_of_half_a_second_are_shown_at_once_also_by_who_comes_late() {
    let latency = gst::ClockTime::from_mseconds(500);
    let film = Film::new("is-live=true", "", None, Some(latency));
    let early = Screen::new(&film.path, None, "latest");
    early.wait_for(30);
    let late = Screen::new(&film.path, None, "latest");
    late.wait_for(40);
    early.wait_for(70);
    // All clocks are the monotonic one: nothing was measured, and nothing is off.
    assert!(check(&early, &late, 0) >= 30);
    // And the moment is the exporter's own, later by what a reader needs.
    let sink = film.pipeline.by_name("sink").unwrap().downcast::<gst_base::BaseSink>().unwrap();
    let published = sink.latency();
    assert!(published >= latency, "{published}");
    let base = film.pipeline.base_time().unwrap();
    let pts = film.pts.lock().unwrap().clone();
    for (sequence, shown) in early.shown() {
        let due = base + pts[sequence as usize - 1] + published;
        assert_eq!(shown.due - early.latency(), due.nseconds(), "frame {sequence}");
    }
}

#[test]
fn clocks_that_drift_do_not_come_between_readers() {
    let (exporters, readers) = (clock(101), clock(98));
    let film = Film::new("is-live=true", "", Some(exporters.clone()), None);
    let system = Screen::new(&film.path, None, "latest");
    let slow = Screen::new(&film.path, Some(readers), "latest");
    slow.wait_for(150);
    system.wait_for(150);
    assert!(check(&system, &slow, READING) >= 100);

    // Negative control: with the difference of the first frame the last one would be off by far more than a reading.
    let shown = system.shown();
    let (first, last) = (shown.first_key_value().unwrap(), shown.last_key_value().unwrap());
    let pts = film.pts.lock().unwrap().clone();
    let in_film = (pts[*last.0 as usize - 1] - pts[*first.0 as usize - 1]).nseconds();
    let in_time = last.1.due - first.1.due;
    assert!(in_film.abs_diff(in_time) > 2 * READING, "{in_film} {in_time}");
    assert!((in_film * 100 / 101).abs_diff(in_time) < READING, "{in_film} {in_time}");
}

/// What is published ahead of its time is shown in its time.
#[test]
fn a_film_that_is_read_at_full_speed_is_shown_at_its_own() {
    let film =
        Film::new("num-buffers=200", "sync=false wait-for-connection=true lossless-readers=all", None, None);
    let screens = [Screen::new(&film.path, None, "lossless"), Screen::new(&film.path, None, "lossless")];
    screens[0].wait_for(50);
    screens[1].wait_for(40);
    assert!(check(&screens[0], &screens[1], 0) >= 30);
    let base = film.pipeline.base_time().unwrap();
    let pts = film.pts.lock().unwrap().clone();
    let due = |sequence: u64| (base + pts[sequence as usize - 1]).nseconds();
    let shown = screens[0].shown();
    // The sink waited for the first reader, and all frames are later by that.
    let (first, delay) = shown.first_key_value().map(|(first, shown)| (*first, shown.due)).unwrap();
    let delay = delay - screens[0].latency() - due(first);
    assert!(Duration::from_nanos(delay) < PATIENCE, "{delay}");
    for (sequence, shown) in shown {
        assert_eq!(shown.due - screens[0].latency(), due(sequence) + delay, "frame {sequence}");
    }
}

#[test]
fn a_reader_that_starts_long_after_the_exporter_shows_what_is_new() {
    let film = Film::new("is-live=true", "", None, None);
    let begin = Instant::now();
    while film.pts.lock().unwrap().len() < 100 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let late = Screen::new(&film.path, Some(clock(102)), "latest");
    let later = Screen::new(&film.path, None, "latest");
    late.wait_for(30);
    later.wait_for(30);
    assert!(check(&later, &late, READING) >= 15);
    assert!(late.shown().keys().next() >= Some(&90));
}
