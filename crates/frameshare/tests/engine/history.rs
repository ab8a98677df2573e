// SPDX-License-Identifier: MIT OR Apache-2.0

//! History: a reader that joins later gets the last frame at once.

use crate::stream::{Stream, format, holds, until};
use frameshare::{
    Event, Policy, Wait,
    exporter::{Config, Exporter, History},
    reader::{self, Item, Reader},
};
use std::time::Duration;

fn keeps_last() -> Config {
    with_pause(Duration::ZERO)
}

/// The last frame is kept for readers that join after a pause of this length.
fn with_pause(pause: Duration) -> Config {
    let mut config = Config::default().history(History::Frames(1));
    config.history_pause = pause;
    config
}

/// Returns an item as text.
fn text(item: Item) -> String {
    match item {
        Item::Format(format) => format.caps.clone(),
        Item::Event(event) => format!("event {}", event.payload[0]),
        Item::Frame(frame) => {
            let sequence = frame.descriptor().sequence.0;
            assert!(holds(&frame, sequence) && frame.lost_before() == 0);
            format!("{} {sequence}", if frame.is_kept() { "kept" } else { "frame" })
        }
        Item::EndOfStream => "end".into(),
        Item::Reconnected => "reconnected".into(),
    }
}

/// Checks that a reader gets these items, and no others.
fn assert_gets(stream: &Stream, reader: &mut Reader, expected: &[&str]) {
    let found: Vec<_> = expected.iter().map(|_| text(stream.next(reader).unwrap())).collect();
    assert_eq!(found, expected);
    let further = reader.next(Some(Duration::from_millis(50)), &stream.interrupt).unwrap();
    assert!(further.is_none(), "{further:?}");
}

fn publish(stream: &Stream, exporter: &Exporter, seeds: std::ops::RangeInclusive<u64>) {
    for seed in seeds {
        stream.publish(exporter, seed).unwrap();
    }
}

#[test]
fn joining_reader_gets_last_frame_then_live_ones() {
    for policy in [Policy::Latest, Policy::Lossless] {
        let stream = Stream::new();
        let exporter = stream.exporter_with(keeps_last());
        exporter.set_format(format("a"));
        publish(&stream, &exporter, 1..=3);
        exporter.send_event(Event { kind: 5, sticky: true, payload: vec![7] }).unwrap();
        let mut reader = stream.reader(policy);
        assert_gets(&stream, &mut reader, &["a", "event 7", "kept 3"]);
        publish(&stream, &exporter, 4..=5);
        assert_gets(&stream, &mut reader, &["frame 4", "frame 5"]);
        // The next one gets the newest, too.
        assert_gets(&stream, &mut stream.reader(policy), &["a", "event 7", "kept 5"]);
        let stats = exporter.stats();
        assert!(stats.readers.iter().all(|reader| reader.lost == 0), "{stats:?}");
    }
}

#[test]
fn reader_without_history_waits_for_next_frame() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    publish(&stream, &exporter, 1..=3);
    let mut reader = stream.reader(Policy::Latest);
    assert_gets(&stream, &mut reader, &[]);
    publish(&stream, &exporter, 4..=4);
    assert_gets(&stream, &mut reader, &["frame 4"]);
}

#[test]
fn last_frame_of_another_format_is_not_kept() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(keeps_last());
    exporter.set_format(format("a"));
    publish(&stream, &exporter, 1..=3);
    exporter.set_format(format("b"));
    assert_gets(&stream, &mut stream.reader(Policy::Latest), &["b"]);
    publish(&stream, &exporter, 4..=4);
    assert_gets(&stream, &mut stream.reader(Policy::Latest), &["b", "kept 4"]);
}

#[test]
fn reader_of_ended_stream_gets_last_frame_and_end() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(keeps_last());
    publish(&stream, &exporter, 1..=3);
    exporter.end_of_stream();
    assert_gets(&stream, &mut stream.reader(Policy::Lossless), &["kept 3", "end"]);
}

#[test]
fn kept_frame_takes_one_slot_and_no_credit() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(keeps_last().max_slots(7));
    let join =
        |max_held| stream.try_reader(reader::Config::default().policy(Policy::Lossless).max_held(max_held));
    let mut reader = join(4).unwrap();
    publish(&stream, &exporter, 1..=1);
    let frame = stream.next_frame(&mut reader);
    // 4 slots of the reader, 3 in reserve.
    assert!(join(1).is_err());
    drop(frame);
    until(|| exporter.stats().free_slots == exporter.stats().slots - 1);
    exporter.set_history(History::Frames(0)).unwrap();
    assert_eq!(exporter.stats().free_slots, exporter.stats().slots);
    assert!(join(1).is_ok());
}

#[test]
fn oversized_metadata_comes_with_the_kept_frame() {
    use frameshare::{
        exporter::{Frame, Purpose},
        fence::Written,
    };
    let stream = Stream::new();
    let exporter = stream.exporter_with(keeps_last());
    for size in [10, 5_000, 100_000] {
        let slot = exporter.acquire(100, Purpose::Copy, Wait::No).unwrap();
        let metadata = vec![42; size];
        let frame = Frame { metadata: &metadata, ..Frame::new(&slot, 100, Written::Cpu) };
        exporter.publish(frame, Wait::Forever).unwrap();
        let frame = stream.next_frame(&mut stream.reader(Policy::Latest));
        assert!(frame.is_kept() && frame.metadata() == metadata);
    }
}

#[test]
fn last_frame_of_a_fast_stream_is_not_repeated() {
    let stream = Stream::new();
    let fast = stream.exporter_with(with_pause(Duration::from_secs(3600)));
    publish(&stream, &fast, 1..=1);
    assert_gets(&stream, &mut stream.reader(Policy::Latest), &[]);
    drop(fast);
    let moment = Duration::from_millis(1);
    let slow = stream.exporter_with(with_pause(moment));
    publish(&stream, &slow, 1..=1);
    std::thread::sleep(moment);
    assert_gets(&stream, &mut stream.reader(Policy::Latest), &["kept 1"]);
}

#[test]
fn history_is_a_number_of_frames() {
    let parsed = ["0", "1"].map(|text| text.parse::<History>().unwrap());
    assert_eq!(parsed, [0, 1].map(History::Frames));
    assert_eq!(History::Frames(1).to_string(), "1");
    for text in ["2", "10s", "last", "-1", ""] {
        let error = text.parse::<History>().unwrap_err().to_string();
        assert!(error.contains(&format!("history is {text:?}, but must be 0, or 1")), "{error}");
    }
    let stream = Stream::new();
    let config = Config::default().history(History::Frames(2));
    let error = Exporter::bind(&stream.endpoint, config, |_| ()).unwrap_err().to_string();
    assert!(error.contains("history is \"2\""), "{error}");
    assert!(stream.exporter().set_history(History::Frames(7)).is_err());
}

#[test]
fn reconnected_reader_gets_last_frame_of_next_exporter() {
    for policy in [Policy::Latest, Policy::Lossless] {
        let stream = Stream::new();
        let exporter = stream.exporter_with(keeps_last());
        exporter.set_format(format("a"));
        publish(&stream, &exporter, 1..=2);
        let config = reader::Config::default().reconnect(true).policy(policy);
        let mut reader = stream.try_reader(config).unwrap();
        assert_gets(&stream, &mut reader, &["a", "kept 2"]);
        drop(exporter);
        let exporter = stream.exporter_with(keeps_last());
        exporter.set_format(format("b"));
        // The reader may be back before these frames, or after them.
        publish(&stream, &exporter, 1..=3);
        let item = stream.next(&mut reader).unwrap();
        assert!(matches!(item, Item::Reconnected), "{item:?}");
        assert_eq!(text(stream.next(&mut reader).unwrap()), "b");
        while !text(stream.next(&mut reader).unwrap()).ends_with(" 3") {}
        assert_eq!(reader.stats().lost, 0);
    }
}
