// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the element in a pipeline, fed by an exporter of the engine in the same process.

use super::FrameshareSrc;
use crate::meta::FrameshareMeta;
use frameshare::{
    Endpoint, Format, Interrupt, Plane, Sequence, Video, Wait,
    exporter::{Config, Exporter, Frame, Purpose, Slot},
    monotonic_ns,
};
use glib::subclass::types::ObjectSubclassIsExt;
use gst::prelude::*;
use std::{
    sync::{Arc, Mutex, atomic::Ordering::Relaxed, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Time limit of each wait; only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(20);
/// Time after which no further frame is expected.
const A_WHILE: Duration = Duration::from_millis(500);
const CAPS: &str =
    "video/x-raw, format=(string)GRAY8, width=(int)64, height=(int)16, framerate=(fraction)25/1";
const SIZE: usize = 64 * 16;

struct Stream {
    exporter: Exporter,
    endpoint: Endpoint,
    _folder: tempfile::TempDir,
}

impl Stream {
    fn new() -> Self {
        Self::with(Config::default().reader_timeout(Duration::from_secs(60)))
    }

    fn with(config: Config) -> Self {
        gst::init().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s.sock")).unwrap();
        let exporter = Exporter::bind(&endpoint, config, |_| {}).unwrap();
        let video = Video { format: "GRAY8".into(), width: 64, height: 16 };
        exporter.set_format(Format { caps: CAPS.into(), video: Some(video) });
        Self { exporter, endpoint, _folder: folder }
    }

    /// Publishes a frame filled with `value`.
    fn publish(&self, value: u8, planes: &[Plane], pts: Option<u64>) -> Sequence {
        let size =
            planes.iter().map(|plane| plane.offset + plane.stride as u64 * 16).max().unwrap_or(SIZE as u64);
        let slot = self.exporter.acquire(size, Purpose::Copy, Wait::No).unwrap();
        crate::ffi::frame_bytes::paint(&slot, value);
        self.exporter.publish(Frame { pts, ..frame(&slot, size, planes) }, Wait::Forever).unwrap()
    }

    fn wait_for_reader(&self) {
        self.exporter.wait_for_reader(Wait::Forever).unwrap();
    }

    fn reader(&self) -> Downstream {
        Downstream::new(&self.endpoint)
    }
}

fn frame<'a>(slot: &'a Slot, size: u64, planes: &'a [Plane]) -> Frame<'a> {
    Frame { duration: Some(40_000_000), planes, ..Frame::new(slot, size, frameshare::fence::Written::Cpu) }
}

/// `framesharesrc ! fakesink`, and the buffers that arrive at the sink.
struct Downstream {
    pipeline: gst::Pipeline,
    source: FrameshareSrc,
    sink: gst::Element,
    buffers: mpsc::Receiver<gst::Buffer>,
}

impl Downstream {
    fn new(endpoint: &Endpoint) -> Self {
        let source = glib::Object::builder::<FrameshareSrc>()
            .property("socket-path", endpoint.path().to_str().unwrap())
            .build();
        let sink = gst::ElementFactory::make("fakesink")
            .property("signal-handoffs", true)
            .property("enable-last-sample", false)
            .build()
            .unwrap();
        let (sender, buffers) = mpsc::channel();
        let sender = Mutex::new(sender);
        sink.connect("handoff", false, move |values| {
            let _ = sender.lock().unwrap().send(values[1].get::<gst::Buffer>().unwrap());
            None
        });
        let pipeline = gst::Pipeline::new();
        pipeline.add_many([source.upcast_ref(), &sink]).unwrap();
        source.link(&sink).unwrap();
        Self { pipeline, source, sink, buffers }
    }

    fn set(self, name: &str, value: impl Into<glib::Value>) -> Self {
        self.source.set_property(name, value);
        self
    }

    /// Makes the sink's allocation answer name these metas.
    fn knows(self, metas: &'static [fn(&mut gst::query::Allocation)]) -> Self {
        let pad = self.sink.static_pad("sink").unwrap();
        pad.add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, move |_, info| match info.query_mut() {
            Some(query) if query.type_() == gst::QueryType::Allocation => {
                if let gst::QueryViewMut::Allocation(query) = query.view_mut() {
                    metas.iter().for_each(|add| add(query));
                }
                gst::PadProbeReturn::Handled
            }
            _ => gst::PadProbeReturn::Ok,
        });
        self
    }

    fn play(self) -> Self {
        self.pipeline.set_state(gst::State::Playing).unwrap();
        self
    }

    fn next(&self) -> gst::Buffer {
        match self.buffers.recv_timeout(PATIENCE) {
            Ok(buffer) => buffer,
            Err(_) => panic!("no buffer received: {:?}", self.message(gst::MessageType::Error)),
        }
    }

    /// Returns the texts of all warnings so far.
    fn warnings(&self) -> Vec<String> {
        let bus = self.pipeline.bus().unwrap();
        let messages = std::iter::from_fn(|| bus.pop_filtered(&[gst::MessageType::Warning]));
        let text = |message: gst::Message| match message.view() {
            gst::MessageView::Warning(warning) => warning.error().to_string(),
            _ => unreachable!(),
        };
        messages.map(text).collect()
    }

    fn message(&self, kind: gst::MessageType) -> Option<gst::Message> {
        self.pipeline.bus().unwrap().timed_pop_filtered(gst::ClockTime::from_seconds(10), &[kind])
    }

    fn error(&self) -> glib::Error {
        match self.message(gst::MessageType::Error).expect("an error message").view() {
            gst::MessageView::Error(error) => error.error(),
            _ => unreachable!(),
        }
    }

    fn stat(&self, name: &str) -> u64 {
        self.source.property::<gst::Structure>("stats").get(name).unwrap()
    }
}

impl Drop for Downstream {
    fn drop(&mut self) {
        self.pipeline.set_state(gst::State::Null).unwrap();
    }
}

fn video_meta(query: &mut gst::query::Allocation) {
    query.add_allocation_meta::<gst_video::VideoMeta>(None);
}

fn value(buffer: &gst::Buffer) -> u8 {
    let map = buffer.map_readable().unwrap();
    assert!(map.iter().all(|byte| *byte == map[0]), "the frame was written while it was read");
    map[0]
}

/// Publishing thread; it is stopped on drop.
struct Publisher {
    interrupt: Interrupt,
    thread: Option<thread::JoinHandle<()>>,
}

impl Publisher {
    fn start(stream: Arc<Stream>, frames: u8) -> Self {
        let interrupt = stream.exporter.interrupt();
        let publish = move || {
            for index in 0..frames {
                let slot = stream.exporter.acquire(SIZE as u64, Purpose::Copy, Wait::No).unwrap();
                crate::ffi::frame_bytes::paint(&slot, index);
                if stream.exporter.publish(frame(&slot, SIZE as u64, &[]), Wait::Forever).is_err() {
                    return;
                }
            }
            stream.exporter.end_of_stream();
        };
        Self { interrupt, thread: Some(thread::spawn(publish)) }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.interrupt.set();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[test]
fn buffers_map_exporter_memory_read_only_with_meta() {
    let stream = Stream::new();
    let reader = stream.reader().play();
    stream.wait_for_reader();
    for index in 1..=3 {
        stream.publish(index, &[], None);
        let mut buffer = reader.next();
        assert_eq!(value(&buffer), index);
        assert!(buffer.peek_memory(0).flags().contains(gst::MemoryFlags::READONLY));
        let meta = buffer.meta::<FrameshareMeta>().unwrap();
        assert_eq!((meta.sequence(), meta.lost_before()), (u64::from(index), 0));
        assert_eq!(meta.session(), reader.stat("session"));
        assert!(meta.published() <= monotonic_ns());
        // A writer gets a copy.
        let original = buffer.clone();
        buffer.make_mut().map_writable().unwrap().fill(99);
        assert_eq!((value(&original), value(&buffer)), (index, 99));
    }
    assert_eq!(reader.stat("received"), 3);
    assert_eq!(reader.stat("copied-for-credit") + reader.stat("copied-for-layout"), 0);
}

#[test]
fn buffer_copies_and_regions_keep_the_lease() {
    let stream = Stream::new();
    let reader = stream.reader().set("policy", super::settings::FrameshareSrcPolicy::Lossless).play();
    stream.wait_for_reader();
    stream.publish(7, &[], None);
    let buffer = reader.next();
    let copy = buffer.copy();
    let part = buffer.copy_region(gst::BufferCopyFlags::MEMORY, 10..20).unwrap();
    drop(buffer);
    // The sink drops a buffer shortly after the handoff.
    let wait_until_held_are = |count: u32| {
        let deadline = Instant::now() + PATIENCE;
        while reader.source.property::<gst::Structure>("stats").get::<u32>("held") != Ok(count) {
            assert!(Instant::now() < deadline, "{count} frames should be held");
            thread::sleep(Duration::from_millis(1));
        }
    };
    wait_until_held_are(1);
    // If the frame were released, its slot would be written next.
    for index in 100..160 {
        stream.publish(index, &[], None);
        reader.next();
    }
    assert_eq!((value(&copy), value(&part)), (7, 7));
    drop(copy);
    wait_until_held_are(1);
    assert_eq!(value(&part), 7);
    drop(part);
    wait_until_held_are(0);
}

#[test]
fn downstream_keeping_sixty_buffers_gets_them_all() {
    let stream = Arc::new(Stream::new());
    let reader = stream
        .reader()
        .set("policy", super::settings::FrameshareSrcPolicy::Lossless)
        .set("max-held", 4_u32)
        .play();
    stream.wait_for_reader();
    let _publisher = Publisher::start(stream.clone(), 60);
    let kept = (0..60).map(|_| reader.next()).collect::<Vec<_>>();
    for (index, buffer) in kept.iter().enumerate() {
        assert_eq!(value(buffer), index as u8);
        assert_eq!(buffer.meta::<FrameshareMeta>().unwrap().sequence(), index as u64 + 1);
    }
    assert!(reader.message(gst::MessageType::Eos).is_some());
    assert_eq!(reader.stat("copied-for-credit"), 57, "three buffers stay in place");
}

/// A lossless reader gets every frame: its queue is its credit.
#[test]
fn max_queued_limits_queue_of_latest_reader() {
    let queue = |reader: Downstream| {
        let stream = Stream::new();
        reader.source.set_property("socket-path", stream.endpoint.path().to_str());
        let _reader = reader.set("max-held", 5_u32).play();
        stream.wait_for_reader();
        stream.exporter.stats().readers[0].info.max_queued
    };
    let reader = || Stream::new().reader();
    assert_eq!(queue(reader()), 2);
    assert_eq!(queue(reader().set("max-queued", 3_u32)), 3);
    assert_eq!(queue(reader().set("max-queued", 64_u32)), 5);
    assert_eq!(queue(reader().set("policy", super::settings::FrameshareSrcPolicy::Lossless)), 5);
}

/// Negative control of the copy rule: without it the stream stops.
#[test]
fn stream_without_copy_rule_stops_at_credit_limit() {
    let stream = Arc::new(Stream::new());
    let reader =
        stream.reader().set("policy", super::settings::FrameshareSrcPolicy::Lossless).set("max-held", 4_u32);
    reader.source.imp().holds_everything.store(true, Relaxed);
    let reader = reader.play();
    stream.wait_for_reader();
    let _publisher = Publisher::start(stream.clone(), 60);
    let _kept = (0..4).map(|_| reader.next()).collect::<Vec<_>>();
    assert!(reader.buffers.recv_timeout(A_WHILE).is_err(), "a fifth frame arrived");
}

#[test]
fn padded_rows_stay_in_place_with_video_meta_support() {
    let stream = Stream::new();
    let reader = stream.reader().knows(&[video_meta]).play();
    stream.wait_for_reader();
    stream.publish(5, &[Plane { offset: 128, stride: 80 }], None);
    let buffer = reader.next();
    let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
    assert_eq!((meta.offset(), meta.stride()), (&[128][..], &[80][..]));
    let info = gst_video::VideoInfo::from_caps(&CAPS.parse::<gst::Caps>().unwrap()).unwrap();
    let frame = gst_video::VideoFrame::from_buffer_readable(buffer, &info).ok().unwrap();
    assert!(frame.plane_data(0).unwrap().iter().all(|byte| *byte == 5));
    assert_eq!(reader.stat("copied-for-layout"), 0);
}

#[test]
fn padded_rows_are_copied_without_video_meta_support() {
    let stream = Stream::new();
    let reader = stream.reader().play();
    stream.wait_for_reader();
    stream.publish(5, &[Plane { offset: 128, stride: 80 }], None);
    let buffer = reader.next();
    assert_eq!((buffer.size(), value(&buffer)), (SIZE, 5));
    assert_eq!(reader.stat("copied-for-layout"), 1);
    // One warning, however many copies.
    stream.publish(6, &[Plane { offset: 128, stride: 80 }], None);
    reader.next();
    let warnings = reader.warnings();
    assert!(matches!(&warnings[..], [text] if text.contains("video-meta=always")), "{warnings:?}");
}

#[test]
fn application_that_reads_video_meta_gets_padded_rows_in_place() {
    let stream = Stream::new();
    let reader =
        stream.reader().set("video-meta", crate::src::settings::FrameshareSrcVideoMeta::Always).play();
    stream.wait_for_reader();
    stream.publish(5, &[Plane { offset: 128, stride: 80 }], None);
    let buffer = reader.next();
    let meta = buffer.meta::<gst_video::VideoMeta>().unwrap();
    assert_eq!((meta.offset(), meta.stride()), (&[128][..], &[80][..]));
    assert_eq!((reader.stat("copied-for-layout"), reader.warnings()), (0, Vec::new()));
}

#[test]
fn planes_outside_frame_are_an_error() {
    let stream = Stream::new();
    let reader = stream.reader().play();
    stream.wait_for_reader();
    let slot = stream.exporter.acquire(SIZE as u64, Purpose::Copy, Wait::No).unwrap();
    let planes = [Plane { offset: 0, stride: 1_000_000 }];
    stream.exporter.publish(frame(&slot, SIZE as u64, &planes), Wait::Forever).unwrap();
    assert!(reader.error().matches(gst::StreamError::Format));
}

#[test]
fn loss_causes_sequence_gap_discont_and_qos_message() {
    let stream = Stream::new();
    let reader = stream.reader().set("max-held", 2_u32).play();
    stream.wait_for_reader();
    stream.publish(1, &[], None);
    let first = reader.next();
    reader.pipeline.set_state(gst::State::Paused).unwrap();
    for index in 2..=20 {
        stream.publish(index, &[], None);
    }
    reader.pipeline.set_state(gst::State::Playing).unwrap();
    let (mut expected, mut seen_discont) = (2, false);
    while expected <= 20 {
        // The last frames may be lost; the next frame then reports that.
        let Ok(buffer) = reader.buffers.recv_timeout(Duration::from_millis(20)) else {
            stream.publish(21, &[], None);
            continue;
        };
        let meta = buffer.meta::<FrameshareMeta>().unwrap();
        assert_eq!(meta.sequence(), expected + meta.lost_before());
        assert_eq!(buffer.flags().contains(gst::BufferFlags::DISCONT), meta.lost_before() > 0);
        seen_discont |= meta.lost_before() > 0;
        expected = meta.sequence() + 1;
    }
    assert!(seen_discont);
    drop(first);
    let lost = gst::format::Buffers::from_u64(reader.stat("lost"));
    loop {
        // One message for each gap; the last one has the total.
        let message = reader.message(gst::MessageType::Qos).expect("a QoS message");
        let gst::MessageView::Qos(qos) = message.view() else { unreachable!() };
        if qos.stats().1 == lost.into() {
            break;
        }
    }
}

#[test]
fn losses_before_and_after_switch_are_added() {
    let streams = [Stream::new(), Stream::new()];
    let reader = streams[0].reader().set("max-held", 2_u32).play();
    let mut lost = 0;
    for stream in &streams {
        reader.source.set_property("socket-path", stream.endpoint.path().to_str());
        stream.wait_for_reader();
        stream.publish(1, &[], None);
        reader.next();
        reader.pipeline.set_state(gst::State::Paused).unwrap();
        (2..=20).for_each(|index| _ = stream.publish(index, &[], None));
        reader.pipeline.set_state(gst::State::Playing).unwrap();
        let mut sequence = 1;
        while sequence < 20 {
            // The last frames may be lost; the next frame then reports that.
            let Ok(buffer) = reader.buffers.recv_timeout(Duration::from_millis(20)) else {
                stream.publish(21, &[], None);
                continue;
            };
            let meta = buffer.meta::<FrameshareMeta>().unwrap();
            lost += meta.lost_before();
            sequence = meta.sequence();
        }
        // Frames lost after the last one that arrived may be counted too.
        assert!(lost > 0 && reader.stat("lost") >= lost);
    }
}

#[test]
fn timestamps_are_running_times_of_own_pipeline() {
    let stream = Stream::new();
    let reader = stream.reader().play();
    stream.wait_for_reader();
    // Wait after the start, so that a wrong base time is detected.
    thread::sleep(Duration::from_millis(200));
    let now = || reader.pipeline.current_running_time().unwrap();
    let before = now();
    let time = monotonic_ns();
    let after = now();
    stream.publish(1, &[], Some(time));
    let buffer = reader.next();
    assert!((before..=after).contains(&buffer.pts().unwrap()), "{buffer:?} {before} {after}");
    assert_eq!(buffer.duration(), Some(gst::ClockTime::from_mseconds(40)));
    stream.publish(2, &[], Some(1));
    let buffer = reader.next();
    // Before the start of the pipeline, which no timestamp can tell.
    assert_eq!((buffer.pts(), buffer.duration()), (None, Some(gst::ClockTime::from_mseconds(40))));
    stream.publish(3, &[], None);
    assert_eq!(reader.next().pts(), None);
}

/// An element whose step from PLAYING to PAUSED lasts until the test ends it.
mod slow_to_pause {
    use gst::subclass::prelude::*;
    use std::sync::{Mutex, mpsc};

    #[derive(Default)]
    pub struct Imp(pub Mutex<Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>>);

    #[glib::object_subclass]
    impl ObjectSubclass for Imp {
        const NAME: &'static str = "FrameshareTestSlowToPause";
        type Type = SlowToPause;
        type ParentType = gst::Element;
    }

    impl ObjectImpl for Imp {}
    impl GstObjectImpl for Imp {}
    impl ElementImpl for Imp {
        fn change_state(
            &self,
            transition: gst::StateChange,
        ) -> Result<gst::StateChangeSuccess, gst::StateChangeError> {
            if transition == gst::StateChange::PlayingToPaused
                && let Some((begun, go_on)) = self.0.lock().unwrap().take()
            {
                begun.send(()).unwrap();
                let _ = go_on.recv_timeout(super::PATIENCE);
            }
            self.parent_change_state(transition)
        }
    }

    glib::wrapper! {
        pub struct SlowToPause(ObjectSubclass<Imp>) @extends gst::Element, gst::Object;
    }
}

/// The thread of a state change holds the pipeline's state lock, and may wait for the source.
#[test]
fn new_latency_does_not_wait_for_a_state_change() {
    let stream = Stream::new();
    let reader = stream.reader();
    let slow: slow_to_pause::SlowToPause = glib::Object::new();
    // Sinks change their state before sources.
    slow.set_element_flags(gst::ElementFlags::SINK);
    let ((begun, has_begun), (end, go_on)) = (mpsc::channel(), mpsc::channel());
    *slow.imp().0.lock().unwrap() = Some((begun, go_on));
    reader.pipeline.add(&slow).unwrap();
    let (sent, frames) = mpsc::channel();
    let pad = reader.source.static_pad("src").unwrap();
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
        let _ = sent.send(());
        gst::PadProbeReturn::Drop
    });
    let reader = reader.play();
    stream.wait_for_reader();
    stream.publish(1, &[], None);
    frames.recv_timeout(PATIENCE).expect("the first frame");
    thread::scope(|scope| {
        let pause = scope.spawn(|| reader.pipeline.set_state(gst::State::Paused));
        has_begun.recv_timeout(PATIENCE).expect("the state change has begun");
        // Another rate: the latency is another one, too.
        let caps = CAPS.replace("25/1", "5/1");
        stream.exporter.set_format(Format { caps, video: None });
        stream.publish(2, &[], None);
        let frame = frames.recv_timeout(PATIENCE / 4);
        drop(end);
        pause.join().unwrap().unwrap();
        assert!(frame.is_ok(), "the source waits for the state change");
    });
}

#[test]
fn latency_query_returns_the_property() {
    let stream = Stream::new();
    let reader = stream.reader().set("latency", 70_000_000_u64).play();
    stream.wait_for_reader();
    stream.publish(1, &[], None);
    reader.next();
    let mut query = gst::query::Latency::new();
    // Query the source, not the pipeline: a sink that does not synchronize ignores the latency.
    assert!(reader.source.query(&mut query));
    // Four frames of 40 ms can be held; downstream has one of them.
    let longest = gst::ClockTime::from_mseconds(120);
    assert_eq!(query.result(), (true, gst::ClockTime::from_mseconds(70), Some(longest)));
}

#[test]
fn new_caps_precede_their_frames() {
    let stream = Stream::new();
    let reader = stream.reader().play();
    stream.wait_for_reader();
    stream.publish(1, &[], None);
    reader.next();
    let wider = CAPS.replace("width=(int)64", "width=(int)32");
    stream.exporter.set_format(Format { caps: wider.clone(), video: None });
    stream.publish(2, &[], None);
    reader.next();
    let caps = reader.sink.static_pad("sink").unwrap().current_caps().unwrap();
    assert_eq!(caps, wider.parse::<gst::Caps>().unwrap());
}

#[test]
fn format_refused_downstream_is_an_error_with_remedy() {
    let stream = Stream::new();
    let reader = stream.reader();
    reader.source.unlink(&reader.sink);
    let filter = gst::ElementFactory::make("capsfilter")
        .property("caps", "video/x-raw, format=NV12".parse::<gst::Caps>().unwrap())
        .build()
        .unwrap();
    reader.pipeline.add(&filter).unwrap();
    gst::Element::link_many([reader.source.upcast_ref(), &filter, &reader.sink]).unwrap();
    let reader = reader.play();
    stream.wait_for_reader();
    stream.publish(1, &[], None);
    let error = reader.error();
    assert!(
        error.matches(gst::CoreError::Negotiation) && error.message().contains("videoconvert"),
        "{error}"
    );
}

#[test]
fn unfixed_caps_are_an_error() {
    let stream = Stream::new();
    stream.exporter.set_format(Format { caps: "video/x-raw, width=[ 1, 2 ]".into(), video: None });
    let reader = stream.reader().play();
    stream.wait_for_reader();
    stream.publish(1, &[], None);
    assert!(reader.error().matches(gst::StreamError::WrongType));
}

#[test]
fn state_changes_interrupt_every_wait() {
    gst::init().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let nobody = Endpoint::at(folder.path().join("nobody.sock")).unwrap();
    let stream = Stream::new();
    for (endpoint, spin) in
        [(&nobody, 10_u32), (&stream.endpoint, 0), (&stream.endpoint, 10), (&stream.endpoint, 100)]
    {
        let reader = Downstream::new(endpoint).set("spin", spin);
        let reader = reader.set("connection-timeout", -1_i64).play();
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        reader.pipeline.set_state(gst::State::Paused).unwrap();
        reader.pipeline.set_state(gst::State::Playing).unwrap();
        reader.pipeline.set_state(gst::State::Null).unwrap();
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn spinning_source_counts_its_cost() {
    let stream = Stream::new();
    let reader = stream.reader().set("spin", 100_u32).play();
    stream.wait_for_reader();
    let begin = Instant::now();
    // A frame that comes before the source waits again is in no spin.
    while reader.stat("spin-frames") == 0 {
        assert!(begin.elapsed() < PATIENCE, "no frame came in a spin");
        stream.publish(1, &[], None);
        reader.next();
        thread::sleep(Duration::from_millis(5));
    }
    assert!(reader.stat("spin-time") > 0);
}

#[test]
fn frames_continue_after_each_pause() {
    let stream = Stream::new();
    let reader = stream.reader().play();
    stream.wait_for_reader();
    for index in 1..=5 {
        stream.publish(index, &[], None);
        assert_eq!(value(&reader.next()), index);
        reader.pipeline.set_state(gst::State::Paused).unwrap();
        reader.pipeline.set_state(gst::State::Playing).unwrap();
    }
}

#[test]
fn held_buffer_stays_intact_after_source_stops() {
    let stream = Stream::with(Config::default().max_slots(6));
    let reader = stream.reader().play();
    stream.wait_for_reader();
    stream.publish(1, &[], None);
    let held = reader.next();
    reader.pipeline.set_state(gst::State::Null).unwrap();
    for index in 2..=200 {
        stream.publish(index, &[], None);
    }
    assert_eq!(value(&held), 1);
    drop(held);
    let deadline = Instant::now() + PATIENCE;
    while stream.exporter.reader_count() > 0 {
        assert!(Instant::now() < deadline, "the reader does not disconnect");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn exporter_stop_is_error_and_end_of_stream_is_eos() {
    for ends in [true, false] {
        let stream = Stream::new();
        let reader = stream.reader().play();
        stream.wait_for_reader();
        stream.publish(1, &[], None);
        reader.next();
        if ends {
            stream.exporter.end_of_stream();
        }
        drop(stream);
        if ends {
            assert!(reader.message(gst::MessageType::Eos).is_some());
        } else {
            assert!(reader.error().matches(gst::ResourceError::Read));
        }
    }
}

#[test]
fn lost_exporter_ends_stream_with_on_disconnect_eos() {
    let eos = super::settings::FrameshareSrcOnDisconnect::Eos;
    let stream = Stream::new();
    let reader = stream.reader().set("on-disconnect", eos).play();
    stream.wait_for_reader();
    stream.publish(1, &[], None);
    reader.next();
    drop(stream);
    let warning = reader.message(gst::MessageType::Warning).expect("a warning");
    let gst::MessageView::Warning(warning) = warning.view() else { unreachable!() };
    assert!(warning.error().message().contains("on-disconnect=eos"), "{warning:?}");
    assert!(reader.message(gst::MessageType::Eos).is_some());
}

/// An exporter that was never there is not lost: the mistake must not become an empty recording.
#[test]
fn missing_exporter_is_an_error_with_on_disconnect_eos() {
    let stream = Stream::new();
    let reader = stream.reader().set("on-disconnect", super::settings::FrameshareSrcOnDisconnect::Eos);
    let reader = reader.set("connection-timeout", 10_000_000_i64);
    drop(stream);
    assert!(reader.play().error().matches(gst::ResourceError::NotFound));
}

#[test]
fn reconnection_marks_first_buffer_discont() {
    let first = Stream::new();
    let reader = first.reader().set("on-disconnect", super::settings::FrameshareSrcOnDisconnect::Wait).play();
    first.wait_for_reader();
    first.publish(1, &[], None);
    let buffer = reader.next();
    let session = buffer.meta::<FrameshareMeta>().unwrap().session();
    drop(buffer);
    let Stream { exporter, endpoint, _folder } = first;
    drop(exporter);
    let exporter = Exporter::bind(&endpoint, Config::default(), |_| {}).unwrap();
    exporter.set_format(Format { caps: CAPS.into(), video: None });
    let second = Stream { exporter, endpoint, _folder };
    second.wait_for_reader();
    second.publish(2, &[], None);
    let buffer = reader.next();
    assert_eq!(value(&buffer), 2);
    assert!(buffer.flags().contains(gst::BufferFlags::DISCONT));
    assert_ne!(buffer.meta::<FrameshareMeta>().unwrap().session(), session);
    assert_eq!(reader.stat("reconnections"), 1);
}
