// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers of frames: `FrameshareMeta`, and the action signal `frame-info`.

use super::*;
use gstframeshare::FrameshareMeta;

/// Returns the output of elements behind a `framesharesrc` that reads 3 frames, and the source.
fn output(elements: &str) -> (Vec<gst::Buffer>, gst::Element) {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::watch(
        gst::parse::launch(&format!(
            "framesharesrc name=source policy=lossless num-buffers=3 connection-timeout=20000000000 \
             socket-path={} ! {elements} ! fakesink name=end sync=false",
            exporter.path.display()
        ))
        .unwrap()
        .downcast()
        .unwrap(),
    );
    let source = reader.pipeline.by_name("source").unwrap();
    for value in 1..=3 {
        let mut frame = gst::Buffer::from_slice([value; GRAY_SIZE]);
        // A compositor takes none without.
        frame.make_mut().set_pts(gst::ClockTime::from_mseconds(40) * u64::from(value));
        exporter.push(frame);
    }
    let mut buffers = Vec::new();
    loop {
        match reader.next() {
            Arrival::Buffer(buffer, _) => buffers.push(buffer),
            Arrival::Event(event) if event.type_() == gst::EventType::Eos => return (buffers, source),
            Arrival::Event(_) => {}
        }
    }
}

fn frame_info(source: &gst::Element, buffer: &gst::Buffer) -> Option<gst::Structure> {
    source.emit_by_name("frame-info", &[buffer])
}

#[test]
fn frame_info_equals_meta() {
    let (buffers, source) = output("identity");
    for (buffer, sequence) in buffers.iter().zip(1_u64..) {
        let meta = buffer.meta::<FrameshareMeta>().unwrap();
        let info = frame_info(&source, buffer).unwrap();
        assert_eq!(info.name(), "frame-info");
        assert_eq!(info.get("sequence"), Ok(sequence));
        assert_eq!(info.get("sequence"), Ok(meta.sequence()));
        assert_eq!(info.get("session"), Ok(meta.session()));
        assert_eq!(info.get("lost-before"), Ok(meta.lost_before()));
        assert_eq!(info.get("published"), Ok(meta.published()));
        assert_eq!(info.get("repeats"), Ok(0_u64));
    }
    assert_eq!(buffers.len(), 3);
}

#[test]
fn frame_info_of_foreign_buffer_is_null() {
    init();
    let source = gst::ElementFactory::make("framesharesrc").build().unwrap();
    assert_eq!(frame_info(&source, &gst::Buffer::new()), None);
}

#[test]
fn converters_and_coders_keep_frame_numbers() {
    for elements in [
        "videoconvert ! video/x-raw,format=RGB",
        "videoscale ! video/x-raw,width=32,height=32",
        "videoconvert ! video/x-raw,format=I420 ! videoscale ! video/x-raw,width=32,height=32 ! videocrop left=2",
        "videoconvert ! videoflip method=clockwise ! videobalance hue=0.5 ! queue",
        "videoconvert ! jpegenc ! jpegdec",
    ] {
        let (buffers, source) = output(elements);
        let numbers = buffers.iter().map(|buffer| frame_info(&source, buffer)?.get::<u64>("sequence").ok());
        assert_eq!(numbers.collect::<Vec<_>>(), [Some(1), Some(2), Some(3)], "{elements}");
    }
}

/// docs/elements.md names them: a change there is welcome, and a change of the table.
#[test]
fn compositor_drops_frame_numbers() {
    let (buffers, source) = output("compositor");
    assert!(!buffers.is_empty());
    assert!(buffers.iter().all(|buffer| frame_info(&source, buffer).is_none()));
}
