// SPDX-License-Identifier: MIT OR Apache-2.0

//! Buffers and caps that the sink rejects, and buffers that it drops.

use super::*;

const FRAMES: &str = "videotestsrc num-buffers=30 name=upstream ! video/x-raw,format=GRAY8,width=16,height=8";

/// Shares 30 frames; the tenth has `size` bytes. Returns the first message of these types on each
/// side, and the number of frames received.
fn tenth_of(size: usize, kinds: &[gst::MessageType]) -> (gst::Message, gst::Message, u64) {
    let folder = tempfile::tempdir().unwrap();
    let exporter = launch(&format!(
        "{FRAMES} ! framesharesink name=sink sync=false wait-for-connection=true socket-path={}/s",
        folder.path().display()
    ));
    let upstream = exporter.by_name("upstream").unwrap().static_pad("src").unwrap();
    let mut count = 0;
    let count = Mutex::new(move || {
        count += 1;
        count
    });
    upstream.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        if let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data
            && count.lock().unwrap()() == 10
        {
            *buffer = gst::Buffer::from_slice(vec![0; size]);
        }
        gst::PadProbeReturn::Ok
    });
    let reader = launch(&format!(
        "framesharesrc name=source socket-path={}/s policy=lossless connection-timeout=20000000000 ! \
         fakesink sync=false",
        folder.path().display()
    ));
    let first = |pipeline: &gst::Pipeline, kinds: &[gst::MessageType]| {
        let patience = gst::ClockTime::from_seconds(PATIENCE.as_secs());
        pipeline.bus().unwrap().timed_pop_filtered(patience, kinds).expect("a message")
    };
    reader.set_state(gst::State::Playing).unwrap();
    exporter.set_state(gst::State::Playing).unwrap();
    let of_exporter = first(&exporter, kinds);
    let of_reader = first(&reader, &[gst::MessageType::Error, gst::MessageType::Eos]);
    let stats = reader.by_name("source").unwrap().property::<gst::Structure>("stats");
    exporter.set_state(gst::State::Null).unwrap();
    reader.set_state(gst::State::Null).unwrap();
    (of_exporter, of_reader, stats.get("received").unwrap())
}

fn text(message: &gst::Message) -> String {
    match message.view() {
        gst::MessageView::Error(error) => error.error().to_string(),
        gst::MessageView::Warning(warning) => warning.error().to_string(),
        other => format!("{other:?}"),
    }
}

#[test]
fn refused_buffer_ends_readers_with_an_error() {
    let (exporter, reader, received) = tenth_of(3, &[gst::MessageType::Error]);
    let expected = "Upstream sent a buffer of 3 bytes, which does not hold a frame of its caps, of 128 bytes";
    assert!(text(&exporter).contains(expected), "{}", text(&exporter));
    assert_eq!(reader.type_(), gst::MessageType::Error, "{reader:?}");
    assert!(text(&reader).contains("framesharesink cannot share"), "{}", text(&reader));
    assert_eq!(received, 9);
}

#[test]
fn empty_frame_is_dropped_with_a_warning() {
    let (exporter, reader, received) = tenth_of(0, &[gst::MessageType::Error, gst::MessageType::Warning]);
    assert_eq!(exporter.type_(), gst::MessageType::Warning, "{exporter:?}");
    assert!(text(&exporter).contains("empty buffer"), "{}", text(&exporter));
    assert_eq!((reader.type_(), received), (gst::MessageType::Eos, 29));
}

#[test]
fn refused_caps_end_readers_with_an_error() {
    let mut exporter = Exporter::new(GRAY);
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    reader.buffer();
    let other = GRAY.replace("video/x-raw", "video/x-raw(memory:NVMM)");
    // The pad stores the event even if the element refuses it.
    exporter.harness.push_event(gst::event::Caps::new(&other.parse().unwrap()));
    exporter.harness.push_event(gst::event::Eos::new());
    let kinds = [gst::MessageType::Error, gst::MessageType::Eos];
    let patience = gst::ClockTime::from_seconds(PATIENCE.as_secs());
    let message = reader.pipeline.bus().unwrap().timed_pop_filtered(patience, &kinds).expect("a message");
    assert_eq!(message.type_(), gst::MessageType::Error, "{message:?}");
}
