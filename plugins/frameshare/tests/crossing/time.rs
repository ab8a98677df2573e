// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two readers render a frame at the same moment, with any clocks of the three pipelines and any
//! start times.
//!
//! The moment is computed from the inputs of a sink: base time, timestamp and latency, converted to
//! `CLOCK_MONOTONIC`. The real wake-up of a thread depends on the machine and can only be late; it
//! is checked as well, for the best tenth of all frames.

use super::*;
use gst_base::prelude::*;
use gstframeshare::FrameshareMeta;
use std::{collections::BTreeMap, sync::Arc};

const FRAME: u64 = 20_000_000;
/// Maximum error of a clock reading on a busy machine: the clocks are read one after the other, and
/// drift in between.
const READING: u64 = 10_000_000;
const CAPS: &str = "video/x-raw,format=GRAY8,width=16,height=8,framerate=50/1";

/// Returns a clock with its own offset that runs at `percent` of the system clock's rate.
fn clock(percent: u64) -> gst::Clock {
    init();
    let clock = glib::Object::builder::<gst::SystemClock>().build();
    clock.set_calibration(clock.internal_time(), gst::ClockTime::from_seconds(5), percent, 100);
    clock.upcast()
}

#[derive(Clone, Copy, Debug)]
struct Shown {
    /// Scheduled rendering time.
    due: u64,
    /// Actual rendering time.
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
        // As applications do: the source may learn the exporter's latency after it has started.
        let weak = pipeline.downgrade();
        pipeline.bus().unwrap().set_sync_handler(move |_, message| {
            if let (gst::MessageView::Latency(_), Some(pipeline)) = (message.view(), weak.upgrade()) {
                pipeline.call_async(|pipeline| drop(pipeline.recalculate_latency()));
            }
            gst::BusSyncReply::Drop
        });
        let shown = Arc::new(Mutex::new(BTreeMap::new()));
        let end = pipeline.by_name("end").unwrap();
        let record = shown.clone();
        end.connect("handoff", false, move |values| {
            let done = frameshare::monotonic_ns();
            let sink = values[0].get::<gst_base::BaseSink>().unwrap();
            let buffer = values[1].get::<gst::Buffer>().unwrap();
            let segment = sink.segment().downcast::<gst::ClockTime>().unwrap();
            // A frame before the start has no defined rendering time.
            let running = segment.to_running_time(buffer.pts())?;
            // The pipeline loses its clock at the end of a test.
            let time = running + sink.base_time()? + sink.latency();
            // All clocks here derive from the system clock, some at another rate.
            let due = sink.clock()?.unadjust_unlocked(time).nseconds();
            let sequence = buffer.meta::<FrameshareMeta>().unwrap().sequence();
            if !running.is_zero() {
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

/// Pipeline that shares frames of [`CAPS`], and the timestamps of its frames in order.
struct Clip {
    pipeline: gst::Pipeline,
    path: PathBuf,
    pts: Arc<Mutex<Vec<gst::ClockTime>>>,
    _folder: tempfile::TempDir,
}

impl Clip {
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
            // Report the latency of a source that needs so long to produce a frame.
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

impl Drop for Clip {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// Returns the tenth percentile.
fn best(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 10]
}

/// Checks that two readers schedule each frame at most `apart` ns apart, and render it so.
fn check(one: &Screen, other: &Screen, apart: u64) -> usize {
    let (one, other) = (one.shown(), other.shown());
    let both =
        one.iter().filter_map(|(sequence, shown)| Some((shown, other.get(sequence)?))).collect::<Vec<_>>();
    for (one, other) in &both {
        assert!(one.due.abs_diff(other.due) <= apart, "{one:?} {other:?}");
    }
    let really = best(both.iter().map(|(one, other)| one.done.abs_diff(other.done)).collect());
    assert!(really < FRAME / 2, "rendered {really} ns apart");
    let late = best(both.iter().map(|(one, _)| one.done.abs_diff(one.due)).collect());
    assert!(late < FRAME / 2, "rendered {late} ns off schedule");
    both.len()
}

#[test]
fn early_and_late_reader_render_live_frames_together() {
    for sink in ["sync=true", ""] {
        live_frames_are_rendered_together(sink);
    }
}

fn live_frames_are_rendered_together(properties: &str) {
    let latency = gst::ClockTime::from_mseconds(500);
    let clip = Clip::new("is-live=true", properties, None, Some(latency));
    let early = Screen::new(&clip.path, None, "latest");
    early.wait_for(30);
    let late = Screen::new(&clip.path, None, "latest");
    late.wait_for(40);
    early.wait_for(70);
    // All clocks are the monotonic one, so no measured difference adds an error.
    assert!(check(&early, &late, 0) >= 30);
    // The moment is that of the capture, plus the latency of the reader.
    let sink = clip.pipeline.by_name("sink").unwrap().downcast::<gst_base::BaseSink>().unwrap();
    assert!(sink.latency() >= latency, "{}", sink.latency());
    let base = clip.pipeline.base_time().unwrap();
    let pts = clip.pts.lock().unwrap().clone();
    for (sequence, shown) in early.shown() {
        let due = base + pts[sequence as usize - 1];
        assert_eq!(shown.due - early.latency(), due.nseconds(), "frame {sequence}");
    }
}

/// Sound and pictures of two exporters, of which one has an encoder's latency, stay together.
#[test]
fn frames_of_one_moment_have_one_time_whatever_the_latency() {
    let times = [Some(gst::ClockTime::from_mseconds(700)), None].map(|latency| {
        let clip = Clip::new("is-live=true", "", None, latency);
        let screen = Screen::new(&clip.path, None, "lossless");
        screen.wait_for(20);
        let base = clip.pipeline.base_time().unwrap();
        let pts = clip.pts.lock().unwrap().clone();
        // By how much a frame is shown after its capture, without the reader's own latency.
        let shown = screen.shown();
        let (sequence, shown) = shown.last_key_value().unwrap();
        shown.due - screen.latency() - (base + pts[*sequence as usize - 1]).nseconds()
    });
    assert_eq!(times, [0, 0]);
}

#[test]
fn drifting_clocks_keep_readers_in_sync() {
    let (exporters, readers) = (clock(101), clock(98));
    let clip = Clip::new("is-live=true", "", Some(exporters.clone()), None);
    let system = Screen::new(&clip.path, None, "latest");
    let slow = Screen::new(&clip.path, Some(readers), "latest");
    slow.wait_for(150);
    system.wait_for(150);
    assert!(check(&system, &slow, READING) >= 100);

    // Negative control: with the clock difference of the first frame, the last frame would be off
    // by far more than the error of a reading.
    let shown = system.shown();
    let (first, last) = (shown.first_key_value().unwrap(), shown.last_key_value().unwrap());
    let pts = clip.pts.lock().unwrap().clone();
    let in_clip = (pts[*last.0 as usize - 1] - pts[*first.0 as usize - 1]).nseconds();
    let in_time = last.1.due - first.1.due;
    assert!(in_clip.abs_diff(in_time) > 2 * READING, "{in_clip} {in_time}");
    assert!((in_clip * 100 / 101).abs_diff(in_time) < READING, "{in_clip} {in_time}");
}

/// A frame published ahead of its time is rendered at its time.
#[test]
fn video_published_at_full_speed_renders_at_its_rate() {
    let clip =
        Clip::new("num-buffers=200", "sync=false wait-for-connection=true lossless-readers=all", None, None);
    let screens = [Screen::new(&clip.path, None, "lossless"), Screen::new(&clip.path, None, "lossless")];
    screens[0].wait_for(50);
    screens[1].wait_for(40);
    assert!(check(&screens[0], &screens[1], 0) >= 30);
    let base = clip.pipeline.base_time().unwrap();
    let pts = clip.pts.lock().unwrap().clone();
    let due = |sequence: u64| (base + pts[sequence as usize - 1]).nseconds();
    let shown = screens[0].shown();
    // The sink waited for the first reader, which delays all frames by that wait.
    let (first, delay) = shown.first_key_value().map(|(first, shown)| (*first, shown.due)).unwrap();
    let delay = delay - screens[0].latency() - due(first);
    assert!(Duration::from_nanos(delay) < PATIENCE, "{delay}");
    for (sequence, shown) in shown {
        assert_eq!(shown.due - screens[0].latency(), due(sequence) + delay, "frame {sequence}");
    }
}

#[test]
fn late_reader_renders_new_frames() {
    let clip = Clip::new("is-live=true", "", None, None);
    let begin = Instant::now();
    while clip.pts.lock().unwrap().len() < 100 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
    let late = Screen::new(&clip.path, Some(clock(102)), "latest");
    let later = Screen::new(&clip.path, None, "latest");
    late.wait_for(30);
    later.wait_for(30);
    assert!(check(&later, &late, READING) >= 15);
    assert!(late.shown().keys().next() >= Some(&90));
}
