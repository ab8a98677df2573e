// SPDX-License-Identifier: MIT OR Apache-2.0

//! Typed events of the engine, which has no GStreamer, and those of the elements.

use frameshare::{
    Policy, Wait,
    event::{Caps, Content, DateTime, Delivery, Structure, Tag, TagScope, Value},
    exporter::VideoExporter,
    flags::DISCONTINUITY,
    reader::{Config, Frames, Item, Reader},
    video::VideoFormat,
};
use frameshare_test_pipelines::Pipeline;
use frameshare_tests::process::{TestRun, wait_until};
use gst::prelude::*;
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

/// A structure of many types, as GStreamer has it.
fn gst_structure() -> gst::Structure {
    gst::Structure::builder("detection/faces")
        .field("count", 3_i32)
        .field("seen", 5_u64)
        .field("score", 0.25_f64)
        .field("label", "K\u{e4}se")
        .field("none", None::<String>)
        .field("rate", gst::Fraction::new(30000, 1001))
        .field("mask", gst::Bitmask(6))
        .field("width", gst::IntRange::<i32>::with_step(2, 64, 2))
        .field("format", gst::Format::Time)
        .field("time", gst::DateTime::from_iso8601_string("2024-02-29T12:13:14.25+05:30").unwrap())
        .field("image", gst::Buffer::from_slice([1_u8, 2, 3]))
        .field("boxes", gst::Array::new([gst::Array::new([1, 2]), gst::Array::new([3, 4])]))
        .field("inner", gst::Structure::builder("inner").field("any", gst::Caps::new_any()).build())
        .build()
}

/// The same, as the engine has it.
fn structure() -> Structure {
    let array = |values: [i32; 2]| Value::Array(values.map(Value::from).to_vec());
    let time = DateTime {
        offset: 330,
        year: 2024,
        month: Some(2),
        day: Some(29),
        time: Some((12, 13)),
        micros: Some(14_250_000),
    };
    Structure::new("detection/faces")
        .field("count", 3_i32)
        .field("seen", 5_u64)
        .field("score", 0.25_f64)
        .field("label", "K\u{e4}se")
        .field("none", Value::Text(None))
        .field("rate", Value::Fraction { numerator: 30000, denominator: 1001 })
        .field("mask", Value::Bitmask(6))
        .field("width", Value::IntRange { min: 2, max: 64, step: 2 })
        .field("format", Value::Enum { name: "GstFormat".into(), value: 3 })
        .field("time", time)
        .field("image", vec![1_u8, 2, 3])
        .field("boxes", Value::Array(vec![array([1, 2]), array([3, 4])]))
        .field("inner", Structure::new("inner").field("any", Caps::Any))
}

fn title(text: &str) -> Vec<Tag> {
    vec![Tag { name: "title".into(), values: vec![text.into()] }]
}

#[test]
fn engine_reads_events_of_element() {
    let run = TestRun::new();
    let socket = run.socket("events");
    let sending = Pipeline::new(&format!(
        "appsrc name=input format=time caps=video/x-raw,format=GRAY8,width=4,height=4,framerate=30/1 ! \
         framesharesink sync=false wait-for-connection=true socket-path={socket}"
    ));
    sending.play();
    let input: gst_app::AppSrc = sending.element("input").downcast().unwrap();
    let reading = std::thread::spawn(move || {
        let frames = Frames::open(&socket, Config::default().policy(Policy::Lossless)).unwrap();
        let interrupt = frames.interrupt();
        let mut reader = Reader::from(frames);
        let (mut contents, mut flags) = (Vec::new(), Vec::new());
        loop {
            match reader.next(Some(PATIENCE), &interrupt).unwrap().expect("an item in time") {
                Item::Event(event) => contents.push(event.content().unwrap()),
                Item::Frame(frame) => flags.push(frame.descriptor().flags & DISCONTINUITY != 0),
                Item::EndOfStream => return (contents, flags),
                _ => {}
            }
        }
    });
    let push = |flags: gst::BufferFlags| {
        let mut buffer = gst::Buffer::from_slice([0; 16]);
        buffer.get_mut().unwrap().set_flags(flags);
        input.push_buffer(buffer).unwrap();
    };
    push(gst::BufferFlags::empty());
    let mut tags = gst::TagList::new();
    tags.get_mut().unwrap().add::<gst::tags::Title>(&"Gate 4", gst::TagMergeMode::Append);
    input.send_event(gst::event::Tag::new(tags));
    input.send_event(gst::event::CustomDownstream::new(gst_structure()));
    input.send_event(gst::event::CustomDownstreamSticky::new(gst::Structure::new_empty("sticky")));
    push(gst::BufferFlags::DISCONT);
    input.end_of_stream().unwrap();
    let (contents, flags) = reading.join().unwrap();
    let segment = contents.iter().find_map(|content| match content {
        Content::Segment(segment) => Some(*segment),
        _ => None,
    });
    let segment = segment.unwrap_or_else(|| panic!("no segment: {contents:?}"));
    assert_eq!((segment.timestamp(segment.origin + 7), segment.rate), (7, 1.0));
    assert!(matches!(&contents[0], Content::StreamStart { id, .. } if !id.is_empty()), "{contents:?}");
    let tags = Content::Tags { scope: TagScope::Stream, tags: title("Gate 4") };
    assert!(contents.contains(&tags), "{contents:?}");
    let custom = Content::Custom { structure: structure(), delivery: Delivery::InOrder };
    assert!(contents.contains(&custom), "{contents:#?}");
    let sticky = Content::Custom { structure: Structure::new("sticky"), delivery: Delivery::Sticky };
    assert!(contents.contains(&sticky), "{contents:?}");
    assert_eq!(flags.last(), Some(&true));
    sending.wait_for_end();
}

#[test]
fn element_reads_events_of_engine() {
    let run = TestRun::new();
    let socket = run.socket("events");
    let format = VideoFormat::new("GRAY8".parse().unwrap(), 4, 4).rate(30, 1);
    let video = VideoExporter::new(&socket, format).unwrap();
    let send = |content: Content| video.exporter().send_event(content.to_event().unwrap()).unwrap();
    send(Content::StreamStart { id: "gate".into(), flags: 0, group: None });
    send(Content::Tags { scope: TagScope::Global, tags: title("Gate 4") });
    let receiving = Pipeline::new(&format!(
        "framesharesrc policy=lossless socket-path={socket} ! identity name=probe ! fakesink sync=false"
    ));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&seen);
    let pad = receiving.element("probe").static_pad("sink").unwrap();
    pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        if let Some(gst::PadProbeData::Event(event)) = &info.data {
            events.lock().unwrap().push(event.clone());
        }
        gst::PadProbeReturn::Ok
    });
    receiving.play();
    wait_until("the reader", || video.exporter().reader_count() == 1);
    let publish = || video.publish(&video.acquire(Wait::Forever).unwrap(), Wait::Forever).unwrap();
    publish();
    send(Content::Custom { structure: structure(), delivery: Delivery::InOrder });
    send(Content::Gap { pts: frameshare::monotonic_ns(), duration: Some(1_000_000), flags: 0 });
    publish();
    video.exporter().end_of_stream();
    receiving.wait_for_end();
    let seen = seen.lock().unwrap();
    let start = seen.iter().find_map(|event| match event.view() {
        gst::EventView::StreamStart(start) => Some(start.stream_id().to_owned()),
        _ => None,
    });
    assert!(start.is_some_and(|id| id.contains("gate")), "{seen:?}");
    let has_title = |event: &gst::Event| {
        let gst::EventView::Tag(tags) = event.view() else { return false };
        tags.tag().get::<gst::tags::Title>().is_some_and(|title| title.get() == "Gate 4")
    };
    assert!(seen.iter().any(has_title), "{seen:?}");
    let custom = seen.iter().filter(|event| event.type_() == gst::EventType::CustomDownstream);
    let custom = custom.filter_map(|event| event.structure()).next().expect("a custom event");
    for (name, expected) in gst_structure().iter() {
        let found = custom.value(name).unwrap();
        assert_eq!(found.type_(), expected.type_(), "{name}");
        // Buffers are the same only if they are one.
        assert!(name == "image" || found.serialize().ok() == expected.serialize().ok(), "{name}");
    }
    assert!(seen.iter().any(|event| event.type_() == gst::EventType::Gap), "{seen:?}");
}

/// The encoder gets one request a second, and no other event of a reader. A stream of requests
/// costs the reader no unit, and does not delay either end.
#[test]
fn of_200_000_upstream_events_one_a_second_arrives() {
    const EVENTS: usize = 200_000;
    let run = TestRun::new();
    let socket = run.socket("events");
    let sending = Pipeline::new(&format!(
        "appsrc name=input format=time caps=video/x-h264,stream-format=byte-stream,alignment=au,width=4,height=4 ! \
         framesharesink encoded=true sync=false wait-for-connection=true socket-path={socket}"
    ));
    let input: gst_app::AppSrc = sending.element("input").downcast().unwrap();
    let arrived = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&arrived);
    input.static_pad("src").unwrap().add_probe(gst::PadProbeType::EVENT_UPSTREAM, move |_, info| {
        if let Some(gst::PadProbeData::Event(event)) = &info.data {
            events.lock().unwrap().extend(event.structure().map(|structure| structure.name().to_string()));
        }
        gst::PadProbeReturn::Ok
    });
    let receiving = Pipeline::new(&format!(
        "framesharesrc policy=lossless socket-path={socket} connection-timeout=60000000000 ! \
         appsink name=output sync=false"
    ));
    let begin = Instant::now();
    sending.play();
    receiving.play();
    let (output, mut units) = (receiving.appsink("output"), 0_u64);
    let mut unit = || {
        let mut buffer = gst::Buffer::from_slice(units.to_le_bytes());
        let delta = if units > 0 { gst::BufferFlags::DELTA_UNIT } else { gst::BufferFlags::empty() };
        buffer.get_mut().unwrap().set_flags(delta);
        input.push_buffer(buffer).unwrap();
        let sample = output.try_pull_sample(gst::ClockTime::try_from(PATIENCE).ok()).expect("a unit");
        assert_eq!(*sample.buffer().unwrap().map_readable().unwrap(), units.to_le_bytes());
        units += 1;
    };
    unit();
    let pad = output.static_pad("sink").unwrap();
    for number in 0..EVENTS {
        let name = if number % 2 == 0 { "GstForceKeyUnit" } else { "GstUnknown" };
        let fields = gst::Structure::builder(name).field("all-headers", true).field("count", 0_u32).build();
        pad.push_event(gst::event::CustomUpstream::new(fields));
        if number % 1_000 == 0 {
            unit();
        }
    }
    unit();
    wait_until("a request", || !arrived.lock().unwrap().is_empty());
    let most = 1 + begin.elapsed().as_secs() as usize;
    let mut arrived = arrived.lock().unwrap().clone();
    // The sink's own.
    arrived.retain(|name| name != "GstEventLatency");
    assert!(arrived.len() <= most && arrived.iter().all(|name| name == "GstForceKeyUnit"), "{arrived:?}");
    input.end_of_stream().unwrap();
    sending.wait_for_end();
    let stop = Instant::now();
    receiving.stop();
    sending.stop();
    assert!(stop.elapsed() < Duration::from_secs(1), "{:?} to stop", stop.elapsed());
}
