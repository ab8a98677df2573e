// SPDX-License-Identifier: MIT OR Apache-2.0

//! Time of arrival: frames of a live source are published when they arrive, others when they are
//! due.
//!
//! The exporter's clock is moved by the test alone: a frame that waits for it does not arrive.

use super::*;
use gst::ClockTime;
use gst_check::TestClock;

const WAIT: Duration = Duration::from_millis(200);
const LATENCY: ClockTime = ClockTime::from_mseconds(200);

/// `appsrc ! framesharesink`, with a clock that stands still.
struct Paced {
    pipeline: gst::Pipeline,
    source: gst::Element,
    clock: TestClock,
    folder: tempfile::TempDir,
}

impl Paced {
    fn new(is_live: bool, properties: &str) -> Self {
        Self::with_latency(is_live, properties, LATENCY)
    }

    fn with_latency(is_live: bool, properties: &str, latency: ClockTime) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let pipeline = launch(&format!(
            "appsrc name=source format=time is-live={is_live} min-latency={} caps=\"{GRAY}\" ! \
             framesharesink name=sink async=false socket-path={}/s {properties}",
            latency.nseconds(),
            folder.path().display()
        ));
        let clock = TestClock::new();
        clock.set_time(ClockTime::from_seconds(100));
        pipeline.use_clock(Some(&clock));
        let source = pipeline.by_name("source").unwrap();
        pipeline.set_state(gst::State::Playing).unwrap();
        Self { pipeline, source, clock, folder }
    }

    fn reader(&self) -> Reader {
        self.reader_beside(0)
    }

    /// Adds a reader to this number of others.
    fn reader_beside(&self, others: u32) -> Reader {
        let reader = Reader::new(&self.folder.path().join("s"));
        let sink = self.pipeline.by_name("sink").unwrap();
        wait_until("a reader", || sink.property::<u32>("num-clients") == others + 1);
        reader
    }

    fn push(&self, seconds: u64) {
        self.push_at(ClockTime::from_seconds(seconds));
    }

    fn push_at(&self, pts: ClockTime) {
        let mut buffer = gst::Buffer::from_slice([pts.seconds() as u8; GRAY_SIZE]);
        let content = buffer.get_mut().unwrap();
        content.set_pts(pts);
        content.set_duration(ClockTime::SECOND);
        assert_eq!(
            self.source.emit_by_name::<gst::FlowReturn>("push-buffer", &[&buffer]),
            gst::FlowReturn::Ok
        );
    }

    fn published(&self) -> u64 {
        self.stat("published")
    }

    fn stat(&self, name: &str) -> u64 {
        let sink = self.pipeline.by_name("sink").unwrap();
        sink.property::<gst::Structure>("stats").get(name).unwrap()
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

/// Frames, gaps and the end of a live stream arrive in their order, although none of them is due.
#[test]
fn live_stream_arrives_before_it_is_due() {
    let live = Paced::new(true, "");
    let reader = live.reader();
    let sink = live.pipeline.by_name("sink").unwrap();
    live.push(10);
    assert_eq!(bytes(&reader.buffer())[0], 10);
    let stats = sink.property::<gst::Structure>("stats");
    assert!(!stats.get::<bool>("paced").unwrap());
    // Serialized with the frames, as a source sends it.
    let pad = live.source.static_pad("src").unwrap();
    let gap = gst::event::Gap::builder(ClockTime::from_seconds(11)).duration(ClockTime::SECOND).build();
    pad.add_probe(gst::PadProbeType::BUFFER, {
        let gap = Mutex::new(Some(gap));
        move |pad, _| {
            if let Some(gap) = gap.lock().unwrap().take() {
                pad.push_event(gap);
            }
            gst::PadProbeReturn::Ok
        }
    });
    live.push(12);
    reader.next_event(gst::EventType::Gap);
    assert_eq!(bytes(&reader.buffer())[0], 12);
    let ended = live.source.emit_by_name::<gst::FlowReturn>("end-of-stream", &[]);
    assert_eq!(ended, gst::FlowReturn::Ok);
    reader.next_event(gst::EventType::Eos);
    assert_eq!(live.clock.time(), ClockTime::from_seconds(100), "no time has passed");
}

/// `sync=true` waits for the frame's time and the latency; `sync=false` never waits; frames of a
/// source that is not live wait for their time.
#[test]
fn set_property_and_upstream_decide_whether_frames_wait() {
    let cases = [
        (true, "sync=true", true),
        (true, "sync=false", false),
        (false, "", true),
        (false, "sync=true", true),
        (false, "sync=false", false),
    ];
    for (is_live, properties, waits) in cases {
        let source = Paced::new(is_live, properties);
        let reader = source.reader();
        let begin = Instant::now();
        source.push(10);
        if waits {
            source.clock.wait_for_next_pending_id();
            std::thread::sleep(WAIT);
            assert_eq!(source.published(), 0, "live: {is_live}, {properties}");
            source.clock.set_time(ClockTime::from_seconds(111));
            source.clock.process_next_clock_id();
        }
        assert_eq!(bytes(&reader.buffer())[0], 10, "live: {is_live}, {properties}");
        // The waits of a file are none of a fault.
        let wait = Duration::from_nanos(source.stat("mean-wait"));
        let least = if waits && is_live { WAIT } else { Duration::ZERO };
        assert!((least..begin.elapsed()).contains(&wait), "{wait:?}");
        let stats = source.pipeline.by_name("sink").unwrap().property::<gst::Structure>("stats");
        assert_eq!(stats.get::<bool>("paced"), Ok(waits));
    }
}

/// An encoder's delay reaches the sinks of readers, so that they do not find every frame late. A
/// reader that is there from the start learns it, and so does one that joins later.
#[test]
fn delay_of_live_frames_is_latency_of_readers() {
    let delay = ClockTime::from_mseconds(1500);
    let source = Paced::with_latency(true, "", ClockTime::from_seconds(2));
    let first = source.reader();
    source.clock.set_time(ClockTime::from_seconds(200)); // the running time is 100 s
    source.push_at(ClockTime::from_seconds(100) - delay);
    first.buffer();
    let later = source.reader_beside(1);
    source.push_at(ClockTime::from_seconds(100) - delay + ClockTime::from_mseconds(10));
    later.buffer();
    for reader in [first, later] {
        let mut query = gst::query::Latency::new();
        assert!(reader.pipeline.by_name("source").unwrap().query(&mut query));
        let (is_live, least, _) = query.result();
        // The reader adds 20 ms.
        let expected = delay + ClockTime::from_mseconds(20);
        assert!(is_live && least >= expected && least < expected + ClockTime::SECOND, "{least}");
    }
}

/// `sync` can be set while the sink plays.
#[test]
fn sync_is_changed_in_playing() {
    let source = Paced::new(true, "");
    let reader = source.reader();
    source.push(10);
    assert_eq!(bytes(&reader.buffer())[0], 10);
    source.pipeline.by_name("sink").unwrap().set_property("sync", true);
    source.push(20);
    source.clock.wait_for_next_pending_id();
    assert_eq!(source.published(), 1);
}
