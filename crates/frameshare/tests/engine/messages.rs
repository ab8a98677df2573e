// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages: formats, events and the end of the stream, in order with the frames.

use crate::stream::{Stream, format};
use frameshare::{
    Event, Policy,
    exporter::Exporter,
    reader::{self, Item, ReadError},
};
use std::{thread, time::Duration};

#[test]
fn messages_keep_their_place_between_frames() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let event = |kind, sticky, byte| Event { kind, sticky, payload: vec![byte; 3] };
    exporter.set_format(format("a"));
    exporter.send_event(event(1, true, 1)).unwrap();
    exporter.send_event(event(2, false, 2)).unwrap();
    exporter.send_event(event(1, true, 3)).unwrap();
    // A joining reader gets the format and the newest sticky event of each kind.
    let mut reader = stream.try_reader(reader::Config::default().max_held(8).max_queued(8)).unwrap();
    stream.publish(&exporter, 1).unwrap();
    exporter.set_format(format("a"));
    stream.publish(&exporter, 2).unwrap();
    exporter.set_format(format("b"));
    exporter.send_event(event(2, false, 4)).unwrap();
    exporter.send_event(event(1, true, 5)).unwrap();
    stream.publish(&exporter, 3).unwrap();
    exporter.end_of_stream();
    exporter.end_of_stream();
    stream.publish(&exporter, 4).unwrap();
    drop(exporter);

    let mut seen = Vec::new();
    let error = loop {
        seen.push(match stream.next(&mut reader) {
            Ok(Item::Format(format)) => format!("format {}", format.caps),
            Ok(Item::Event(Event { kind, sticky, payload })) => {
                format!("{} event {kind} {payload:?}", if sticky { "sticky" } else { "single" })
            }
            Ok(Item::Frame(frame)) => format!("frame {}", frame.descriptor().sequence.0),
            Ok(Item::EndOfStream) => "end".into(),
            Ok(Item::Reconnected) => unreachable!("not asked for"),
            Err(error) => break error,
        });
    };
    let expected = [
        "format a",
        "sticky event 1 [3, 3, 3]",
        "frame 1",
        "frame 2",
        "format b",
        "single event 2 [4, 4, 4]",
        "sticky event 1 [5, 5, 5]",
        "frame 3",
        "end",
        "frame 4",
    ];
    assert_eq!(seen, expected);
    assert!(matches!(error, ReadError::Stopped(_)), "{error}");
}

#[test]
fn joining_reader_gets_stream_start_before_format() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let event = |kind| Event { kind, sticky: true, payload: vec![1] };
    exporter.send_event(event(7)).unwrap();
    exporter.set_format(format("a"));
    exporter.send_event(event(Event::STREAM_START)).unwrap();
    let mut reader = stream.reader(Policy::Latest);
    let is = |item: Item, kind| matches!(item, Item::Event(event) if event.kind == kind);
    assert!(is(stream.next(&mut reader).unwrap(), Event::STREAM_START));
    assert!(matches!(stream.next(&mut reader), Ok(Item::Format(_))));
    assert!(is(stream.next(&mut reader).unwrap(), 7));
}

#[test]
fn reader_joining_after_end_gets_end() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    stream.publish(&exporter, 1).unwrap();
    exporter.end_of_stream();
    let mut reader = stream.reader(Policy::Latest);
    assert!(matches!(stream.next(&mut reader), Ok(Item::EndOfStream)));
}

#[test]
fn reader_of_continued_stream_gets_no_end() {
    type Announce = fn(&Exporter);
    let announcements: [(&str, Announce); 4] = [
        ("its format", |exporter| exporter.set_format(format("a"))),
        ("another format", |exporter| exporter.set_format(format("b"))),
        ("a sticky event", |exporter| {
            exporter.send_event(Event { kind: 1, sticky: true, payload: vec![1] }).unwrap()
        }),
        ("that it goes on", Exporter::go_on),
    ];
    for (what, announce) in announcements {
        let stream = Stream::new();
        let exporter = stream.exporter();
        exporter.set_format(format("a"));
        stream.publish(&exporter, 1).unwrap();
        exporter.end_of_stream();
        // An event that joining readers do not get does not end the end of the stream.
        exporter.send_event(Event { kind: 2, sticky: false, payload: vec![2] }).unwrap();
        let mut early = stream.reader(Policy::Latest);
        announce(&exporter);
        let mut late = stream.reader(Policy::Latest);
        stream.publish(&exporter, 2).unwrap();

        let mut ends = [false; 2];
        for (reader, ended) in [&mut early, &mut late].into_iter().zip(&mut ends) {
            loop {
                match stream.next(reader).unwrap() {
                    Item::EndOfStream => *ended = true,
                    Item::Frame(frame) => break assert_eq!(frame.descriptor().sequence.0, 2),
                    _ => {}
                }
            }
        }
        assert_eq!(ends, [true, false], "readers from before and after the exporter announced {what}");
    }
}

#[test]
fn polling_reader_gets_events_and_end() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let polling = reader::Config::default().spin(100);
    let mut reader = stream.try_reader(polling).unwrap();
    let read = thread::spawn({
        let interrupt = stream.interrupt.clone();
        move || {
            let mut seen = Vec::new();
            loop {
                match reader.next(Some(Duration::from_secs(20)), &interrupt) {
                    Ok(Some(Item::Frame(_))) => seen.push("frame"),
                    Ok(Some(Item::EndOfStream)) => seen.push("end"),
                    Ok(Some(_)) => {}
                    Ok(None) => return (seen, None),
                    Err(error) => return (seen, Some(error)),
                }
            }
        }
    });
    stream.publish(&exporter, 1).unwrap();
    exporter.end_of_stream();
    thread::sleep(Duration::from_millis(50));
    drop(exporter);
    let (seen, error) = read.join().unwrap();
    assert_eq!(seen, ["frame", "end"]);
    assert!(matches!(error, Some(ReadError::Stopped(_))), "{error:?}");
}

#[test]
fn stopped_reader_stays_stopped() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    drop(exporter);
    for _ in 0..3 {
        assert!(matches!(stream.next(&mut reader), Err(ReadError::Stopped(_))));
    }
}
