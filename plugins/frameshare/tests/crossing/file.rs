// SPDX-License-Identifier: MIT OR Apache-2.0

//! `is-live=false`: a stream read like a file.

use super::*;
use gst::ClockTime;
use std::sync::atomic::{AtomicUsize, Ordering};

fn reading(path: &Path, properties: &str) -> gst::Pipeline {
    launch(&format!(
        "framesharesrc name=source socket-path={} policy=lossless is-live=false \
         connection-timeout=20000000000 {properties} ! fakesink name=end sync=false enable-last-sample=false",
        path.display()
    ))
}

fn frame(value: u8, pts: ClockTime) -> gst::Buffer {
    let mut buffer = gst::Buffer::from_slice([value; GRAY_SIZE]);
    buffer.make_mut().set_pts(pts);
    buffer.make_mut().set_duration(ClockTime::from_mseconds(40));
    buffer
}

fn segment(reader: &Reader) -> gst::FormattedSegment<ClockTime> {
    let pad = reader.pipeline.by_name("end").unwrap().static_pad("sink").unwrap();
    let event = pad.sticky_event::<gst::event::Segment>(0).unwrap();
    event.segment().downcast_ref::<ClockTime>().unwrap().clone()
}

/// Frames from long before the reader started: a live reader would clip their times.
#[test]
fn timestamps_and_segment_of_the_exporter_arrive_unchanged() {
    let mut exporter = Exporter::new(GRAY);
    let mut of_exporter = gst::FormattedSegment::<ClockTime>::new();
    of_exporter.set_start(ClockTime::from_seconds(100));
    of_exporter.set_time(ClockTime::from_seconds(30));
    of_exporter.set_base(ClockTime::from_seconds(7));
    exporter.event(gst::event::Segment::new(&of_exporter));
    let pipeline = reading(&exporter.path, "");
    let segments = Arc::new(AtomicUsize::new(0));
    let count = segments.clone();
    let pad = pipeline.by_name("end").unwrap().static_pad("sink").unwrap();
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        let is_segment = info.event().is_some_and(|event| event.type_() == gst::EventType::Segment);
        count.fetch_add(usize::from(is_segment), Ordering::SeqCst);
        gst::PadProbeReturn::Ok
    });
    let reader = Reader::watch(pipeline);
    let pts = |index: u64| ClockTime::from_seconds(100) + ClockTime::from_mseconds(40) * index;
    for index in 0..5 {
        exporter.push(frame(index as u8, pts(index)));
        let buffer = reader.buffer();
        assert_eq!(bytes(&buffer), [index as u8; GRAY_SIZE]);
        assert_eq!(buffer.pts(), Some(pts(index)));
        assert_eq!(buffer.duration(), Some(ClockTime::from_mseconds(40)));
        let segment = segment(&reader);
        assert_eq!(segment.to_stream_time(buffer.pts().unwrap()), of_exporter.to_stream_time(pts(index)));
        // Running time begins with the first frame.
        assert_eq!(
            segment.to_running_time(buffer.pts().unwrap()),
            Some(ClockTime::from_mseconds(40) * index)
        );
    }
    assert_eq!(segments.load(Ordering::SeqCst), 1);
    // A seek of the exporter is a segment of its own, and running time goes on.
    of_exporter.set_start(ClockTime::from_seconds(500));
    of_exporter.set_time(ClockTime::from_seconds(500));
    of_exporter.set_base(ClockTime::from_seconds(7) + ClockTime::from_mseconds(200));
    exporter.event(gst::event::Segment::new(&of_exporter));
    exporter.push(frame(9, ClockTime::from_seconds(500)));
    let buffer = reader.buffer();
    assert_eq!(buffer.pts(), Some(ClockTime::from_seconds(500)));
    let running = segment(&reader).to_running_time(ClockTime::from_seconds(500));
    assert_eq!(running, Some(ClockTime::from_mseconds(200)));
    assert_eq!(segments.load(Ordering::SeqCst), 2);
}

#[test]
fn reader_that_is_not_live_prerolls_and_has_no_latency() {
    let mut exporter = Exporter::new(GRAY);
    let pipeline = reading(&exporter.path, "");
    assert_eq!(pipeline.set_state(gst::State::Paused), Ok(gst::StateChangeSuccess::Async));
    exporter.push(frame(1, ClockTime::ZERO));
    let (done, state, _) = pipeline.state(ClockTime::from_seconds(20));
    assert_eq!((done, state), (Ok(gst::StateChangeSuccess::Success), gst::State::Paused));
    let mut query = gst::query::Latency::new();
    assert!(pipeline.by_name("source").unwrap().query(&mut query));
    assert_eq!(query.result(), (false, ClockTime::ZERO, None));
    pipeline.set_state(gst::State::Null).unwrap();

    // Negative control: a live one does not.
    let pipeline = reading(&exporter.path, "is-live=true");
    assert_eq!(pipeline.set_state(gst::State::Paused), Ok(gst::StateChangeSuccess::NoPreroll));
    pipeline.set_state(gst::State::Null).unwrap();
}

/// A reader that is paused holds no live exporter back.
#[test]
fn paused_reader_is_subject_to_the_rule_for_slow_readers() {
    let mut exporter =
        Exporter::with(GRAY, "slow-readers=disconnect max-queued-time=50000000 max-queued-bytes=4096");
    let pipeline = reading(&exporter.path, "max-held=1");
    pipeline.set_state(gst::State::Paused).unwrap();
    exporter.wait_for_readers(1);
    let begin = Instant::now();
    let bus = pipeline.bus().unwrap();
    let error = loop {
        exporter.push(frame(1, ClockTime::ZERO));
        // The stream waits for the next reader once this one is disconnected.
        if exporter.harness.element().unwrap().property::<u32>("num-clients") == 0 {
            exporter.harness.element().unwrap().set_property("wait-for-connection", false);
            pipeline.set_state(gst::State::Playing).unwrap();
            break bus.timed_pop_filtered(ClockTime::from_seconds(20), &[gst::MessageType::Error]);
        }
        assert!(begin.elapsed() < PATIENCE, "the reader is not disconnected");
        std::thread::sleep(Duration::from_millis(5));
    };
    let error = error.expect("an error");
    let gst::MessageView::Error(error) = error.view() else { unreachable!() };
    assert!(error.error().message().contains("evicted"), "{error:?}");
    pipeline.set_state(gst::State::Null).unwrap();
}

/// Encoders and muxers get timestamps that go on.
#[test]
fn running_time_goes_on_after_a_restart_of_the_exporter() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::watch(reading(&exporter.path, "on-disconnect=wait"));
    for index in 0..3 {
        exporter.push(frame(1, ClockTime::from_mseconds(40) * index));
        reader.buffer();
    }
    let (path, folder) = (exporter.path.clone(), exporter._folder.take());
    drop(exporter);
    let mut exporter = Exporter::at(&path, "");
    exporter.harness.set_src_caps(GRAY.parse().unwrap());
    for index in 0..3 {
        exporter.push(frame(2, ClockTime::from_mseconds(40) * index));
        let buffer = reader.buffer();
        assert_eq!(buffer.pts(), Some(ClockTime::from_mseconds(40) * index));
        let running = segment(&reader).to_running_time(buffer.pts().unwrap());
        assert_eq!(running, Some(ClockTime::from_mseconds(40) * (index + 3)));
    }
    drop(folder);
}
