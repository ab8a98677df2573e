// SPDX-License-Identifier: MIT OR Apache-2.0

//! Encoded streams: kept units for joining readers, starts at key units, requests for them.

use crate::stream::{Stream, fill, format, frame_in, holds, until};
use frameshare::{
    Event, MAX_CREDIT, Policy, Sequence, Wait,
    exporter::{self, Exporter, Frame, Notice, Purpose, Unit},
    reader::{self, Item, Reader},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Size of most units: no whole number of words.
const SIZE: u64 = 1003;

/// Publishes a unit whose bytes derive from its sequence number, which is its metadata, too.
fn publish(exporter: &Exporter, unit: Unit) -> Sequence {
    publish_sized(exporter, unit, SIZE)
}

fn publish_sized(exporter: &Exporter, unit: Unit, size: u64) -> Sequence {
    let seed = exporter.stats().published + 1;
    let slot = exporter.acquire(size, Purpose::Copy, Wait::No).unwrap();
    fill(slot.as_ptr().unwrap().as_ptr(), size, seed);
    let metadata = seed.to_le_bytes();
    let frame = Frame { size, unit, pts: Some(seed), metadata: &metadata, flags: 7, ..frame_in(&slot) };
    let sequence = exporter.publish(frame, Wait::Forever).unwrap();
    assert_eq!(sequence.0, seed);
    sequence
}

/// Returns the sequence number of a frame, after a check of everything else in it.
fn sequence_of(frame: &reader::Frame) -> u64 {
    let descriptor = frame.descriptor();
    let sequence = descriptor.sequence.0;
    assert!(holds(frame, sequence), "the bytes of frame {sequence}");
    assert_eq!(frame.metadata(), sequence.to_le_bytes());
    assert_eq!((descriptor.pts, descriptor.flags, descriptor.size), (Some(sequence), 7, frame.len() as u64));
    assert!(descriptor.published > 0 && frame.session() > 0);
    sequence
}

/// Returns the next frame's sequence number, and whether it is a kept unit.
fn next(stream: &Stream, reader: &mut Reader) -> (u64, bool) {
    let frame = stream.next_frame(reader);
    (sequence_of(&frame), frame.is_kept())
}

fn reader(stream: &Stream, policy: Policy) -> Reader {
    let config = reader::Config::default().policy(policy).max_held(16).max_queued(MAX_CREDIT);
    stream.try_reader(config).unwrap()
}

/// An exporter, and the number of its requests for a key unit.
fn counting(stream: &Stream, config: exporter::Config) -> (Exporter, Arc<AtomicUsize>) {
    let wanted = Arc::new(AtomicUsize::new(0));
    let count = wanted.clone();
    let observer = move |notice| {
        count.fetch_add(usize::from(notice == Notice::KeyUnitWanted), Ordering::SeqCst);
    };
    (Exporter::bind(&stream.endpoint, config, observer).unwrap(), wanted)
}

#[test]
fn joining_reader_gets_kept_units_then_live_frames() {
    for policy in [Policy::Latest, Policy::Lossless] {
        let stream = Stream::new();
        let exporter = stream.exporter();
        exporter.set_format(format("video/x-h264"));
        // An earlier GOP, which is not needed.
        for unit in [Unit::Key, Unit::Delta, Unit::Key, Unit::Delta, Unit::Delta] {
            publish(&exporter, unit);
        }
        let stats = exporter.stats();
        assert_eq!(stats.gop_units, 3);
        assert!((3 * SIZE..4 * SIZE).contains(&stats.gop_bytes), "{stats:?}");
        let mut reader = reader(&stream, policy);
        publish(&exporter, Unit::Delta);
        assert!(matches!(stream.next(&mut reader), Ok(Item::Format(_))));
        let kept: Vec<_> = (0..3).map(|_| stream.next_frame(&mut reader)).collect();
        assert_eq!(reader.held(), 0, "kept units take no credit");
        assert!(kept.iter().all(|unit| unit.is_kept() && unit.lost_before() == 0));
        assert_eq!(next(&stream, &mut reader), (6, false));
        publish(&exporter, Unit::Key);
        assert_eq!(next(&stream, &mut reader), (7, false));
        assert_eq!((reader.stats().received, reader.stats().lost), (5, 0));
        assert_eq!(exporter.stats().readers[0].lost, 0);
        // They outlive everything else.
        drop((reader, exporter));
        assert_eq!(kept.iter().map(sequence_of).collect::<Vec<_>>(), [3, 4, 5]);
    }
}

#[test]
fn units_around_join_have_no_gap_and_no_duplicate() {
    const READERS: usize = 60;
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config::default().max_slots(256));
    let (stop, served) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
    let read = |policy| {
        let (joined, mut reader) = (Instant::now(), reader(&stream, policy));
        let first = stream.next_frame(&mut reader);
        let key = sequence_of(&first);
        // A reader that waits for a key unit gets any unit after two seconds.
        assert!(key % 30 == 1 || joined.elapsed() >= Duration::from_secs(2), "it starts at unit {key}");
        served.fetch_add(usize::from(first.is_kept()), Ordering::Relaxed);
        drop(first);
        for expected in key + 1..key + 40 {
            let frame = stream.next_frame(&mut reader);
            let found = sequence_of(&frame);
            if policy == Policy::Latest && frame.lost_before() > 0 {
                assert_eq!(found % 30, 1, "the first unit after a loss is a key unit");
                break;
            }
            assert_eq!((found, frame.lost_before()), (expected, 0));
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let published = exporter.stats().published;
                let (unit, size) =
                    if published.is_multiple_of(30) { (Unit::Key, 100_000) } else { (Unit::Delta, 777) };
                publish_sized(&exporter, unit, size);
                thread::sleep(Duration::from_micros(300));
            }
        });
        // The publisher ends after a failure, too.
        let readers = scope.spawn(|| {
            for index in 0..READERS {
                read(if index % 2 == 0 { Policy::Latest } else { Policy::Lossless });
            }
        });
        let outcome = readers.join();
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    // Some may have joined in front of a key unit, or when too much was published meanwhile.
    assert!(served.load(Ordering::Relaxed) > 0);
}

#[test]
fn gop_over_limit_is_not_kept() {
    for policy in [Policy::Latest, Policy::Lossless] {
        let stream = Stream::new();
        let config = exporter::Config::default().max_gop_bytes(3 * SIZE);
        let (exporter, wanted) = counting(&stream, config);
        for (unit, kept) in [(Unit::Key, 1), (Unit::Delta, 2), (Unit::Delta, 0), (Unit::Delta, 0)] {
            publish(&exporter, unit);
            assert_eq!(exporter.stats().gop_units, kept);
        }
        let mut reader = reader(&stream, policy);
        until(|| wanted.load(Ordering::SeqCst) == 1);
        let [_, key] = [Unit::Delta, Unit::Key].map(|unit| publish(&exporter, unit));
        assert_eq!(next(&stream, &mut reader), (key.0, false));
        assert_eq!((reader.stats().lost, exporter.stats().readers[0].lost), (0, 0));
        assert_eq!(exporter.stats().gop_units, 1);
        assert_eq!(wanted.load(Ordering::SeqCst), 1);
    }
}

#[test]
fn reader_that_accepts_no_kept_units_starts_at_key() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    publish(&exporter, Unit::Key);
    let mut reader = stream.try_reader(reader::Config::default().max_gop_bytes(1000)).unwrap();
    publish(&exporter, Unit::Delta);
    publish(&exporter, Unit::Key);
    assert_eq!(next(&stream, &mut reader), (3, false));
    assert_eq!(reader.stats().lost, 0);
}

#[test]
fn format_change_and_end_drop_the_kept_gop() {
    type Change = fn(&Exporter);
    let changes: [Change; 2] =
        [|exporter| exporter.set_format(format("video/x-h265")), Exporter::end_of_stream];
    for change in changes {
        let stream = Stream::new();
        let exporter = stream.exporter();
        exporter.set_format(format("video/x-h264"));
        publish(&exporter, Unit::Key);
        // The same format again changes nothing.
        exporter.set_format(format("video/x-h264"));
        assert_eq!(exporter.stats().gop_units, 1);
        change(&exporter);
        assert_eq!((exporter.stats().gop_units, exporter.stats().gop_bytes), (0, 0));
        let mut reader = reader(&stream, Policy::Latest);
        exporter.go_on();
        let item = stream.next(&mut reader).unwrap();
        assert!(matches!(item, Item::Format(_)), "{item:?}");
        let key = publish(&exporter, Unit::Key);
        let frame = loop {
            match stream.next(&mut reader).unwrap() {
                Item::Frame(frame) => break frame,
                Item::EndOfStream => {}
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((sequence_of(&frame), frame.is_kept(), frame.lost_before()), (key.0, false, 0));
    }
}

#[test]
fn frames_that_are_no_units_are_not_kept() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    publish(&exporter, Unit::Key);
    publish(&exporter, Unit::Whole);
    assert_eq!(exporter.stats().gop_units, 0);
    let mut reader = reader(&stream, Policy::Latest);
    publish(&exporter, Unit::Whole);
    assert_eq!(next(&stream, &mut reader), (3, false));
}

#[test]
fn latest_reader_resumes_at_key_after_loss() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let config = reader::Config::default().max_held(8).max_queued(2);
    let mut reader = stream.try_reader(config).unwrap();
    // The third unit finds two untaken ones: it is lost, and so are those that depend on it.
    for unit in [Unit::Key, Unit::Delta, Unit::Delta, Unit::Delta] {
        publish(&exporter, unit);
    }
    assert_eq!(next(&stream, &mut reader), (1, false));
    // There is room again.
    publish(&exporter, Unit::Delta);
    assert_eq!(next(&stream, &mut reader), (2, false));
    publish(&exporter, Unit::Delta);
    let item = reader.try_next().unwrap();
    assert!(item.is_none(), "a unit that depends on a lost one: {item:?}");
    publish(&exporter, Unit::Key);
    let frame = stream.next_frame(&mut reader);
    assert_eq!((sequence_of(&frame), frame.lost_before()), (7, 4));
    publish(&exporter, Unit::Delta);
    assert_eq!(next(&stream, &mut reader), (8, false));
    assert_eq!((reader.stats().lost, exporter.stats().readers[0].lost), (4, 4));
}

#[test]
fn reconnected_reader_gets_kept_units_of_next_exporter() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    publish(&exporter, Unit::Key);
    let config = reader::Config::default().reconnect(true).policy(Policy::Lossless);
    let mut reader = stream.try_reader(config).unwrap();
    assert_eq!(next(&stream, &mut reader), (1, true));
    drop(exporter);
    let exporter = stream.exporter();
    // The reader may be back before the second unit, or after it.
    let _ = [Unit::Key, Unit::Delta].map(|unit| publish(&exporter, unit));
    let item = stream.next(&mut reader);
    assert!(matches!(item, Ok(Item::Reconnected)), "{item:?}");
    publish(&exporter, Unit::Delta);
    let got = [(); 3].map(|()| next(&stream, &mut reader).0);
    assert_eq!((got, reader.stats().lost, reader.stats().received), ([1, 2, 3], 0, 4));
}

#[test]
fn key_unit_replaces_untaken_units() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.try_reader(reader::Config::default().max_held(8).max_queued(2)).unwrap();
    for unit in [Unit::Key, Unit::Delta, Unit::Key, Unit::Delta] {
        publish(&exporter, unit);
    }
    let frame = stream.next_frame(&mut reader);
    assert_eq!((sequence_of(&frame), frame.lost_before()), (3, 2));
    assert_eq!(next(&stream, &mut reader), (4, false));
    assert_eq!((reader.stats().lost, exporter.stats().readers[0].lost), (2, 2));
}

#[test]
fn reader_waits_two_seconds_for_key_at_most() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config::default().max_gop_bytes(0));
    publish(&exporter, Unit::Delta);
    let joined = Instant::now();
    let mut reader = reader(&stream, Policy::Latest);
    let frame = loop {
        publish(&exporter, Unit::Delta);
        if let Some(Item::Frame(frame)) =
            reader.next(Some(Duration::from_millis(50)), &stream.interrupt).unwrap()
        {
            break frame;
        }
        assert!(joined.elapsed() < Duration::from_secs(20), "no frame came");
    };
    assert!(joined.elapsed() >= Duration::from_secs(2), "{:?}", joined.elapsed());
    assert!(sequence_of(&frame) > 10);
    assert_eq!((reader.stats().lost, exporter.stats().readers[0].lost), (0, 0));
}

#[test]
fn end_while_reader_waits_for_key_loses_nothing() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config::default().max_gop_bytes(0));
    publish(&exporter, Unit::Delta);
    let mut readers = [Policy::Latest, Policy::Lossless].map(|policy| reader(&stream, policy));
    publish(&exporter, Unit::Delta);
    publish(&exporter, Unit::Delta);
    exporter.end_of_stream();
    for reader in &mut readers {
        assert!(matches!(stream.next(reader), Ok(Item::EndOfStream)));
        assert_eq!((reader.stats().received, reader.stats().lost), (0, 0));
    }
    exporter.go_on();
    publish(&exporter, Unit::Delta);
    drop(exporter);
    for reader in &mut readers {
        stream.next(reader).unwrap_err();
        assert_eq!((reader.stats().received, reader.stats().lost), (0, 0));
    }
}

#[test]
fn requests_for_key_units_are_limited() {
    let stream = Stream::new();
    let counts = Arc::<[AtomicUsize; 2]>::default();
    let [wanted, copied] = &*counts;
    let observed = counts.clone();
    let observer = move |notice| {
        let is = [notice == Notice::KeyUnitWanted, matches!(notice, Notice::LayoutCopied { .. })];
        for (count, is) in observed.iter().zip(is) {
            count.fetch_add(is.into(), Ordering::SeqCst);
        }
    };
    let exporter = Exporter::bind(&stream.endpoint, exporter::Config::default(), observer).unwrap();
    // Messages are handled in order, and so are notices: a later one shows that the request was.
    let request = |reader: &Reader| {
        let before = copied.load(Ordering::SeqCst);
        reader.request_key_unit();
        reader.report_layout_copies();
        until(|| copied.load(Ordering::SeqCst) > before);
    };
    let mut reader = reader(&stream, Policy::Latest);
    publish(&exporter, Unit::Whole);
    request(&reader);
    assert_eq!(wanted.load(Ordering::SeqCst), 0, "the stream is not encoded");
    publish(&exporter, Unit::Key);
    // The kept GOP serves this one, until it has read it.
    let joined = self::reader(&stream, Policy::Latest);
    request(&joined);
    assert_eq!(wanted.load(Ordering::SeqCst), 0, "the reader has a kept GOP");
    let asked = Instant::now();
    for _ in 0..100 {
        reader.request_key_unit();
    }
    until(|| wanted.load(Ordering::SeqCst) >= 1);
    thread::sleep(Duration::from_millis(1100));
    // One a second. A busy machine may handle them later than they were sent.
    let before = wanted.load(Ordering::SeqCst);
    assert!(before as u64 <= 1 + asked.elapsed().as_secs(), "{before} in {:?}", asked.elapsed());
    reader.request_key_unit();
    until(|| wanted.load(Ordering::SeqCst) > before);
    assert_eq!(next(&stream, &mut reader), (1, false));
}

/// Kept units serve a reader until it has taken a live unit, whether or not it ever fills its
/// queue.
#[test]
fn reader_of_kept_units_asks_for_key_unit_later() {
    for policy in [Policy::Latest, Policy::Lossless] {
        let stream = Stream::new();
        let (exporter, wanted) = counting(&stream, exporter::Config::default());
        publish(&exporter, Unit::Key);
        let mut reader = reader(&stream, policy);
        publish(&exporter, Unit::Delta);
        assert_eq!([(); 2].map(|()| next(&stream, &mut reader)), [(1, true), (2, false)]);
        reader.request_key_unit();
        until(|| wanted.load(Ordering::SeqCst) == 1);
    }
}

/// A camera that is joined between two key units, by readers that were there before.
#[test]
fn waiting_reader_starts_at_key_of_new_stream() {
    for policy in [Policy::Latest, Policy::Lossless] {
        let stream = Stream::new();
        let (exporter, wanted) = counting(&stream, exporter::Config::default());
        let mut reader = reader(&stream, policy);
        let _ = [Unit::Delta, Unit::Delta, Unit::Key].map(|unit| publish(&exporter, unit));
        assert_eq!(next(&stream, &mut reader), (3, false));
        until(|| wanted.load(Ordering::SeqCst) == 1);
        // The units of another format depend on none of these.
        exporter.set_format(format("video/x-h265"));
        let _ = [Unit::Delta, Unit::Key, Unit::Delta].map(|unit| publish(&exporter, unit));
        assert_eq!([(); 2].map(|()| next(&stream, &mut reader)), [(5, false), (6, false)]);
        assert_eq!((reader.stats().lost, exporter.stats().readers[0].lost), (0, 0));
    }
}

/// New caps of the same media, as a parser sends them in the middle of a group, cost no unit.
#[test]
fn units_behind_new_caps_of_the_same_media_are_delivered() {
    for policy in [Policy::Latest, Policy::Lossless] {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader = reader(&stream, policy);
        exporter.set_format(format("video/x-h264, width=(int)64"));
        publish(&exporter, Unit::Key);
        publish(&exporter, Unit::Delta);
        exporter.set_format(format("video/x-h264, width=(int)32"));
        publish(&exporter, Unit::Delta);
        assert_eq!([(); 3].map(|()| next(&stream, &mut reader).0), [1, 2, 3]);
        assert_eq!((reader.stats().lost, exporter.stats().readers[0].lost), (0, 0));
    }
}

/// A key unit is lost while messages wait for the reader; the units that depend on it are not
/// delivered.
#[test]
fn lost_key_unit_takes_its_delta_units_along() {
    const EVENTS: usize = 20;
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = reader(&stream, Policy::Latest);
    publish(&exporter, Unit::Key);
    assert_eq!(next(&stream, &mut reader), (1, false));
    // More files than may be in flight.
    for _ in 0..EVENTS {
        let event = Event { kind: 9, sticky: false, payload: vec![1; 100_000] };
        exporter.send_event(event).unwrap();
    }
    publish(&exporter, Unit::Key);
    let mut events = 0;
    until(|| {
        events += usize::from(matches!(reader.try_next().unwrap(), Some(Item::Event(_))));
        events == EVENTS
    });
    publish(&exporter, Unit::Delta);
    publish(&exporter, Unit::Key);
    let frame = stream.next_frame(&mut reader);
    assert_eq!((sequence_of(&frame), frame.lost_before()), (4, 2));
}
