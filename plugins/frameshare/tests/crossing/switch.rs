// SPDX-License-Identifier: MIT OR Apache-2.0

//! Change of the stream in PLAYING.

use super::*;
use gst::EventType::{Caps, Segment, StreamStart};

const RGB: &str = "video/x-raw, format=(string)RGB, width=(int)20, height=(int)10, framerate=(fraction)25/1";
const RGB_SIZE: usize = 20 * 10 * 3;
const FRAMES: usize = 3;

fn exporters() -> [(Exporter, usize); 2] {
    [(Exporter::new(GRAY), GRAY_SIZE), (Exporter::new(RGB), RGB_SIZE)]
}

fn switch(reader: &Reader, path: &Path) {
    reader.pipeline.by_name("source").unwrap().set_property("socket-path", path.to_str().unwrap());
}

fn opening(events: &[gst::Event]) -> Vec<gst::EventType> {
    let kinds = events.iter().map(|event| event.type_());
    kinds.filter(|kind| [StreamStart, Caps, Segment].contains(kind)).collect()
}

fn error(reader: &Reader) -> String {
    let bus = reader.pipeline.bus().unwrap();
    let message = bus.timed_pop_filtered(gst::ClockTime::from_seconds(20), &[gst::MessageType::Error]);
    match message.expect("an error").view() {
        gst::MessageView::Error(error) => error.error().to_string(),
        _ => unreachable!(),
    }
}

#[test]
fn fifty_switches_deliver_every_frame_unchanged() {
    let mut exporters = exporters();
    let reader = Reader::new(&exporters[0].0.path);
    let mut held = std::collections::VecDeque::new();
    for round in 0..51 {
        let (exporter, size) = &mut exporters[round % 2];
        if round > 0 {
            switch(&reader, &exporter.path);
        }
        let size = *size;
        for index in 0..FRAMES {
            let content = noise((round * FRAMES + index) as u64, size);
            exporter.push(gst::Buffer::from_slice(content.clone()));
            let (buffer, caps, events) = reader.next_buffer();
            assert_eq!(bytes(&buffer), content, "frame {index} of round {round}");
            assert_eq!(caps, [GRAY, RGB][round % 2].parse().ok());
            if index == 0 {
                assert_eq!(opening(&events), [StreamStart, Caps, Segment], "round {round}");
                assert!(round == 0 || buffer.flags().contains(gst::BufferFlags::DISCONT));
            } else {
                assert_eq!(opening(&events), []);
            }
            held.push_back((buffer, content));
        }
        while held.len() > 2 * FRAMES {
            let (buffer, content) = held.pop_front().unwrap();
            assert_eq!(bytes(&buffer), content, "a held frame changed after a switch");
        }
        exporters[(round + 1) % 2].0.wait_for_readers(0);
    }
}

/// The source waits for frames, and then for an exporter that does not exist.
#[test]
fn quick_switches_end_at_last_stream() {
    let [(mut first, _), (mut second, _)] = exporters();
    let reader = Reader::new(&first.path);
    first.push_value(1);
    reader.buffer();
    for round in 0..10 {
        switch(&reader, &first.path.with_file_name(format!("missing{round}")));
    }
    first.wait_for_readers(0);
    switch(&reader, &second.path);
    second.push(gst::Buffer::from_slice([7; RGB_SIZE]));
    let (buffer, _, events) = reader.next_buffer();
    assert_eq!(bytes(&buffer), [7; RGB_SIZE]);
    assert_eq!(opening(&events), [StreamStart, Caps, Segment]);
    // Setting the present stream is no switch.
    switch(&reader, &second.path);
    second.push(gst::Buffer::from_slice([8; RGB_SIZE]));
    let (buffer, _, events) = reader.next_buffer();
    assert_eq!((bytes(&buffer), opening(&events)), (vec![8; RGB_SIZE], vec![]));
}

#[test]
fn switch_ends_wait_for_lost_exporter() {
    let [(mut first, _), (mut second, _)] = exporters();
    let reader = Reader::watch(launch(&format!(
        "framesharesrc name=source socket-path={} policy=lossless on-disconnect=wait connection-timeout=-1 ! \
         fakesink name=end sync=false enable-last-sample=false",
        first.path.display()
    )));
    first.push_value(1);
    let held = reader.buffer();
    drop(first);
    switch(&reader, &second.path);
    second.push(gst::Buffer::from_slice([7; RGB_SIZE]));
    let (buffer, _, events) = reader.next_buffer();
    assert_eq!((bytes(&buffer), opening(&events)), (vec![7; RGB_SIZE], vec![StreamStart, Caps, Segment]));
    assert_eq!(bytes(&held), [1; GRAY_SIZE]);
}

#[test]
fn switch_to_missing_stream_is_an_error_that_names_it() {
    let (mut exporter, _) = exporters().into_iter().next().unwrap();
    let reader = Reader::watch(launch(&format!(
        "framesharesrc name=source socket-path={} on-disconnect=eos connection-timeout=3000000000 ! \
         fakesink name=end",
        exporter.path.display()
    )));
    exporter.wait_for_readers(1);
    exporter.push_value(1);
    reader.buffer();
    switch(&reader, &exporter.path.with_file_name("missing"));
    let error = error(&reader);
    assert!(error.contains("No exporter of") && error.contains("missing"), "{error}");
}

#[test]
fn state_changes_during_switches_do_not_hang() {
    let [(first, _), (mut second, _)] = exporters();
    let reader = Reader::new(&first.path);
    let missing = first.path.with_file_name("missing");
    for round in 0..30 {
        switch(&reader, [&first.path, &missing, &second.path][round % 3]);
        if round % 2 == 0 {
            reader.pipeline.set_state(gst::State::Paused).unwrap();
            switch(&reader, &missing);
            reader.pipeline.set_state(gst::State::Playing).unwrap();
        }
        if round % 5 == 0 {
            reader.pipeline.set_state(gst::State::Ready).unwrap();
            reader.pipeline.set_state(gst::State::Playing).unwrap();
        }
    }
    switch(&reader, &second.path);
    second.push(gst::Buffer::from_slice([7; RGB_SIZE]));
    assert_eq!(bytes(&reader.buffer()), [7; RGB_SIZE]);
}

#[test]
fn flush_during_switch_does_not_hang() {
    let [(mut first, _), (mut second, _)] = exporters();
    let reader = Reader::new(&first.path);
    first.push_value(1);
    reader.buffer();
    let source = reader.pipeline.by_name("source").unwrap();
    switch(&reader, &first.path.with_file_name("missing"));
    source.send_event(gst::event::FlushStart::new());
    switch(&reader, &second.path);
    source.send_event(gst::event::FlushStop::new(false));
    second.push(gst::Buffer::from_slice([7; RGB_SIZE]));
    assert_eq!(bytes(&reader.buffer()), [7; RGB_SIZE]);
}

#[test]
fn invalid_stream_name_in_playing_is_an_error() {
    let (mut exporter, _) = exporters().into_iter().next().unwrap();
    let reader = Reader::new(&exporter.path);
    exporter.push_value(1);
    reader.buffer();
    let source = reader.pipeline.by_name("source").unwrap();
    source.set_property("stream", "not a name");
    source.set_property("socket-path", None::<&str>);
    assert!(error(&reader).contains("not a name"));
}
