// SPDX-License-Identifier: MIT OR Apache-2.0

//! The memory of frames: read-only, copied for elements that write, and a file where one is needed.

use super::*;
use std::os::unix::fs::FileExt;

fn stat(reader: &Reader, name: &str) -> u64 {
    let stats = reader.pipeline.by_name("source").unwrap().property::<gst::Structure>("stats");
    stats.get(name).unwrap()
}

fn warnings(reader: &Reader) -> Vec<String> {
    let bus = reader.pipeline.bus().unwrap();
    let messages = std::iter::from_fn(|| bus.pop_filtered(&[gst::MessageType::Warning]));
    let text = |message: gst::Message| match message.view() {
        gst::MessageView::Warning(warning) => warning.error().to_string(),
        _ => unreachable!(),
    };
    messages.map(text).collect()
}

#[test]
fn element_that_writes_gets_a_copy_and_a_reason() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    for value in 1..=3 {
        exporter.push_value(value);
        let buffer = reader.buffer();
        // Reading, and sharing a part, copies nothing.
        let part = buffer.copy_region(gst::BufferCopyFlags::MEMORY, 10..20).unwrap();
        assert_eq!((bytes(&buffer), bytes(&part)), (vec![value; GRAY_SIZE], vec![value; 10]));
        assert_eq!(stat(&reader, "copied-downstream"), 2 * u64::from(value - 1));
        let mut written = buffer.copy();
        written.make_mut().map_writable().unwrap().fill(99);
        assert_eq!((bytes(&written), bytes(&buffer)), (vec![99; GRAY_SIZE], vec![value; GRAY_SIZE]));
        assert_eq!(stat(&reader, "copied-downstream"), 2 * u64::from(value) - 1);
        // A part is copied from its place.
        assert_eq!(bytes(&part.copy_deep().unwrap()), [value; 10]);
    }
    let warnings = warnings(&reader);
    assert!(warnings.len() == 1 && warnings[0].contains("writes into them"), "{warnings:?}");
}

#[test]
fn part_of_frame_survives_frame_and_exporter() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push(gst::Buffer::from_slice(Vec::from_iter(0..GRAY_SIZE as u8)));
    let buffer = reader.buffer();
    let part = buffer.copy_region(gst::BufferCopyFlags::MEMORY, 30..40).unwrap();
    let smaller = part.copy_region(gst::BufferCopyFlags::MEMORY, 2..5).unwrap();
    drop((buffer, part, reader, exporter));
    assert_eq!(bytes(&smaller), [32, 33, 34]);
}

mod passer {
    use gst::{prelude::*, subclass::prelude::*};

    /// An element of a type that makes the source expect that its files are forwarded.
    #[derive(Default)]
    pub struct Passer;

    #[glib::object_subclass]
    impl ObjectSubclass for Passer {
        const NAME: &'static str = "GstUnixFdSink";
        type Type = Element;
        type ParentType = gst::Bin;
    }

    impl ObjectImpl for Passer {}
    impl GstObjectImpl for Passer {}
    impl ElementImpl for Passer {}
    impl BinImpl for Passer {}

    glib::wrapper! {
        pub struct Element(ObjectSubclass<Passer>) @extends gst::Bin, gst::Element, gst::Object;
    }

    pub fn register() {
        gst::init().unwrap();
        if gst::ElementFactory::find("unixfdsink").is_none() {
            gst::Element::register(None, "unixfdsink", gst::Rank::NONE, Element::static_type()).unwrap();
        }
    }
}

/// A pipeline with a `unixfdsink` gets memory of a GstFdAllocator; the kernel refuses to write into
/// its file. Other pipelines keep no file open.
#[test]
fn memory_is_a_sealed_file_beside_unixfdsink() {
    passer::register();
    for passes in [true, false] {
        let mut exporter = Exporter::new(GRAY);
        let pipeline = launch(&format!(
            "framesharesrc name=source socket-path={} policy=lossless connection-timeout=20000000000 ! \
             fakesink name=end sync=false enable-last-sample=false",
            exporter.path.display()
        ));
        if passes {
            let passer = gst::ElementFactory::make("unixfdsink").build().unwrap();
            passer.set_locked_state(true);
            pipeline.add(&passer).unwrap();
        }
        let reader = Reader::watch(pipeline);
        for value in 1..=20 {
            exporter.push_value(value);
            let buffer = reader.buffer();
            assert_eq!(bytes(&buffer), [value; GRAY_SIZE]);
            let memory = buffer.peek_memory(0);
            let file = memory.downcast_memory_ref::<gst_allocators::FdMemory>();
            assert_eq!(file.is_some(), passes);
            if let Some(memory) = file {
                let path = format!("/proc/self/fd/{}", memory.fd());
                let mut content = [0; GRAY_SIZE];
                let file = std::fs::File::open(&path).unwrap();
                file.read_exact_at(&mut content, memory.offset() as u64).unwrap();
                assert_eq!(content, [value; GRAY_SIZE]);
                let writable = std::fs::File::options().write(true).open(&path);
                assert!(writable.and_then(|file| file.write_at(&[0], 0)).is_err());
                let part = buffer.copy_region(gst::BufferCopyFlags::MEMORY, 10..20).unwrap();
                assert_eq!(bytes(&part), [value; 10]);
                let mut written = buffer.copy();
                written.make_mut().map_writable().unwrap().fill(99);
                assert_eq!(bytes(&buffer), [value; GRAY_SIZE]);
            }
        }
    }
}

/// Caps of frames in dma-bufs, as elements of GStreamer 1.24 and later send them. Copied here: no
/// device of this machine has dma-bufs.
fn drm_caps(drm_format: &str) -> gst::Caps {
    let caps = "video/x-raw(memory:DMABuf), format=DMA_DRM, width=16, height=8, framerate=30/1, drm-format";
    format!("{caps}={drm_format}").parse().unwrap()
}

#[test]
fn linear_drm_frames_arrive_under_plain_caps() {
    let mut exporter = Exporter::without_caps("");
    exporter.harness.set_src_caps(drm_caps("AR24"));
    let reader = Reader::new(&exporter.path);
    let frames = [1, 2, 3].map(|value| (0..16 * 8 * 4).map(|at| at as u8 ^ value).collect::<Vec<_>>());
    frames.iter().for_each(|frame| exporter.push(gst::Buffer::from_slice(frame.clone())));
    for frame in &frames {
        let (buffer, caps, _) = reader.next_buffer();
        assert_eq!(&bytes(&buffer), frame);
        let expected = "video/x-raw, format=BGRA, width=16, height=8, framerate=30/1";
        assert!(caps.unwrap().can_intersect(&expected.parse::<gst::Caps>().unwrap()));
    }
    // Upstream is offered no pool: its frames would not be in dma-bufs.
    let mut query = gst::query::Allocation::new(Some(&drm_caps("AR24")), true);
    assert!(exporter.harness.element().unwrap().static_pad("sink").unwrap().query(&mut query));
    assert_eq!(query.allocation_pools().len(), 0);
    assert!(query.find_allocation_meta::<gst_video::VideoMeta>().is_some());
}

fn error_of(bus: &gst::Bus) -> String {
    let error = bus.timed_pop_filtered(gst::ClockTime::from_seconds(20), &[gst::MessageType::Error]);
    let gst::MessageView::Error(error) = error.as_ref().expect("an error").view() else { unreachable!() };
    error.error().to_string()
}

fn bus_of(element: &gst::Element) -> gst::Bus {
    let bus = gst::Bus::new();
    element.set_bus(Some(&bus));
    bus
}

/// A layout of a device.
const TILED: &str = "NV12:0x0100000000000002";

#[test]
fn frames_in_device_layout_are_refused_where_they_would_be_copied() {
    for (properties, drm_format, advice) in [
        ("export=copy", TILED, "export=auto"),
        ("memory=host", TILED, "memory=auto"),
        ("", "NV99:0x0100000000000002", "vapostproc"),
    ] {
        let mut exporter = Exporter::without_caps(properties);
        let bus = bus_of(&exporter.harness.element().unwrap());
        exporter.harness.push_event(gst::event::StreamStart::new("drm"));
        exporter.harness.push_event(gst::event::Caps::new(&drm_caps(drm_format)));
        let text = error_of(&bus);
        assert!(text.contains(drm_format) && text.contains(advice), "{text}");
    }
}

#[test]
fn readers_without_dma_bufs_are_refused_frames_in_device_layout() {
    let mut exporter = Exporter::without_caps("");
    exporter.harness.set_src_caps(drm_caps(TILED));
    let source = |properties: &str| {
        let source = format!("framesharesrc socket-path={} {properties} ! fakesink", exporter.path.display());
        let pipeline: gst::Pipeline = gst::parse::launch(&source).unwrap().downcast().unwrap();
        pipeline.set_state(gst::State::Playing).unwrap();
        pipeline
    };
    let refused = source("dma-bufs=false");
    let text = error_of(&refused.bus().unwrap());
    assert!(text.contains("dma-bufs that cannot be copied") && text.contains("takes no dma-bufs"), "{text}");
    let reader = source("");
    exporter.wait_for_readers(1);
    // With other caps everybody may read again.
    exporter.harness.set_src_caps(drm_caps("NV12"));
    let other = source("dma-bufs=false");
    exporter.wait_for_readers(2);
    for pipeline in [refused, reader, other] {
        pipeline.set_state(gst::State::Null).unwrap();
    }
}

#[test]
fn frames_in_device_layout_are_never_copied() {
    let mut exporter = Exporter::without_caps("wait-for-connection=false");
    exporter.harness.set_src_caps(drm_caps(TILED));
    let bus = bus_of(&exporter.harness.element().unwrap());
    let pushed = exporter.harness.push(gst::Buffer::from_slice([1; 16 * 8 * 3 / 2]));
    assert_eq!(pushed, Err(gst::FlowError::Error));
    let text = error_of(&bus);
    assert!(text.contains("foreign-memory") && text.contains("one dma-buf each"), "{text}");
}
