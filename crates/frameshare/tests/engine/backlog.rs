// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backlogs: frames wait for a lossless reader that pauses, and the stream goes on.

use crate::stream::{SIZE, Stream, format, frame_in, holds, until};
use frameshare::{
    Event, MAX_CREDIT, Policy, Reason, Wait,
    exporter::{Config, Exporter, Frame, Purpose, ReaderStats, SlowReaders, Stats},
    reader::{self, Item, ReadError, Reader},
};
use std::{
    thread,
    time::{Duration, Instant},
};

/// Size of the slot of a frame of the tests.
const SLOT: u64 = SIZE.next_multiple_of(4096);

/// An exporter of a live stream, which evicts no reader for a minute's pause of a busy machine.
fn live() -> Config {
    let patience = Duration::from_secs(60);
    Config::default()
        .slow_readers(SlowReaders::QueueThenDisconnect)
        .reader_timeout(patience)
        .max_queued_time(patience)
}

fn lossless(stream: &Stream, max_held: u32) -> Reader {
    stream.try_reader(reader::Config::default().policy(Policy::Lossless).max_held(max_held)).unwrap()
}

fn latest(stream: &Stream) -> Reader {
    stream.try_reader(reader::Config::default().max_held(4).max_queued(MAX_CREDIT)).unwrap()
}

fn stats_of(exporter: &Exporter, reader: u64) -> ReaderStats {
    exporter.stats().readers.into_iter().find(|stats| stats.info.id == reader).expect("it is connected")
}

/// Reads the frames of these seeds.
fn read(stream: &Stream, reader: &mut Reader, seeds: std::ops::RangeInclusive<u64>) {
    for seed in seeds {
        let frame = stream.next_frame(reader);
        assert_eq!((frame.descriptor().sequence.0, frame.lost_before()), (seed, 0));
        assert!(holds(&frame, seed), "frame {seed} has other content");
    }
}

#[test]
fn paused_reader_gets_every_frame_and_delays_no_other() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live());
    let mut paused = lossless(&stream, 2);
    let (mut other, mut newest) = (lossless(&stream, 2), latest(&stream));
    let start = Instant::now();
    for seed in 1..=100 {
        stream.publish(&exporter, seed).unwrap();
        read(&stream, &mut other, seed..=seed);
        read(&stream, &mut newest, seed..=seed);
    }
    assert!(start.elapsed() < Duration::from_secs(30), "the stream stood still");
    let stats = exporter.stats();
    assert_eq!((stats.readers[0].waiting, stats.waiting_bytes), (98, 98 * SLOT));
    assert_eq!((stats.readers[1].waiting, stats.readers[2].waiting), (0, 0));
    assert_eq!(stats.readers[0].lag, 100);
    // From here on no publication helps: the reader's releases alone bring the rest.
    read(&stream, &mut paused, 1..=100);
    until(|| exporter.stats().readers[0].waiting == 0);
    assert_eq!(exporter.stats().readers[0].lost, 0);
    // The reader is up to date again.
    stream.publish(&exporter, 101).unwrap();
    read(&stream, &mut paused, 101..=101);
}

#[test]
fn stream_that_is_not_live_waits_without_backlog() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(Config::default().reader_timeout(Duration::from_millis(300)));
    let mut paused = lossless(&stream, 2);
    for seed in 1..=3 {
        stream.publish(&exporter, seed).unwrap();
    }
    assert_eq!((exporter.reader_count(), exporter.stats().waiting_bytes), (0, 0));
    assert!(matches!(stream.next(&mut paused), Err(ReadError::CutOff { reason: Reason::TooSlow, .. })));
}

#[test]
fn messages_keep_their_place_in_backlog() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live());
    let mut paused = lossless(&stream, 1);
    let event = |byte| Event { kind: 9, sticky: false, payload: vec![byte] };
    exporter.set_format(format("a"));
    for seed in 1..=6 {
        // Oversized metadata travels as a message of its own.
        exporter.send_event(event(seed as u8)).unwrap();
        if seed == 4 {
            exporter.set_format(format("b"));
        }
        stream.publish_sized(&exporter, seed, SIZE * seed).unwrap();
    }
    exporter.end_of_stream();
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "end") {
        seen.push(match stream.next(&mut paused).unwrap() {
            Item::Format(format) => format.caps.clone(),
            Item::Event(event) => format!("event {}", event.payload[0]),
            Item::Frame(frame) => {
                let sequence = frame.descriptor().sequence.0;
                assert!(frame.len() as u64 == SIZE * sequence && holds(&frame, sequence));
                format!("frame {sequence}")
            }
            Item::EndOfStream => "end".into(),
            Item::Reconnected => unreachable!("not asked for"),
        });
    }
    let expected = "a, event 1, frame 1, event 2, frame 2, event 3, frame 3, event 4, b, frame 4, event 5, \
                    frame 5, event 6, frame 6, end";
    assert_eq!(seen.join(", "), expected);
    assert_eq!(exporter.drain(Wait::For(Duration::from_secs(20))), Ok(true));
}

/// Publishes until the paused reader, which is the first one, is evicted; returns the number of
/// frames that waited for it before.
fn frames_until_eviction(stream: &Stream, exporter: &Exporter) -> u32 {
    let mut most = 0;
    for seed in 1..=400 {
        stream.publish(exporter, seed).unwrap();
        match exporter.stats().readers.iter().find(|stats| stats.info.id == 1) {
            Some(stats) => most = most.max(stats.waiting),
            None => return most,
        }
    }
    panic!("it was not evicted: {most} frames wait for it");
}

/// Metadata that exceeds the frame's area counts, and so do its files.
#[test]
fn backlog_is_limited_in_oversized_metadata() {
    let config = live().max_queued_bytes(10 * (SLOT + 20_000) + SLOT);
    for (config, length, expected) in [(config, 20_000, 10), (live(), 70_000, 128)] {
        let stream = Stream::new();
        let exporter = stream.exporter_with(config);
        let _paused = lossless(&stream, 2);
        let metadata = vec![7; length];
        let mut most = 0;
        for _ in 0..200 {
            let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
            exporter.publish(Frame { metadata: &metadata, ..frame_in(&slot) }, Wait::Forever).unwrap();
            most = exporter.stats().readers.first().map_or(most, |stats| most.max(stats.waiting));
        }
        assert_eq!((most, exporter.reader_count()), (expected, 0));
    }
}

#[test]
fn backlog_is_limited_in_bytes_and_its_reader_evicted() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live().max_queued_bytes(10 * SLOT + SLOT / 2));
    let mut paused = lossless(&stream, 2);
    assert_eq!(frames_until_eviction(&stream, &exporter), 10);
    let error = stream.next(&mut paused).unwrap_err();
    let ReadError::CutOff { reason: Reason::TooSlow, text, .. } = &error else { panic!("{error}") };
    assert!(text.contains("10 frames wait for it"), "{text}");
}

#[test]
fn backlog_is_limited_in_slots() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live().max_slots(12));
    let _paused = lossless(&stream, 2);
    // 12 slots: 2 that the reader may hold, 2 in reserve.
    assert_eq!(frames_until_eviction(&stream, &exporter), 8);
}

#[test]
fn backlog_is_limited_in_time() {
    let stream = Stream::new();
    let limit = Duration::from_secs(1);
    let exporter = stream.exporter_with(live().max_queued_time(limit));
    let _paused = lossless(&stream, 2);
    for seed in 1..=3 {
        stream.publish(&exporter, seed).unwrap();
    }
    assert_eq!(exporter.reader_count(), 1);
    thread::sleep(limit);
    stream.publish(&exporter, 4).unwrap();
    assert_eq!(exporter.reader_count(), 0);
}

#[test]
fn full_backlog_of_one_reader_evicts_no_other() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live().max_queued_bytes(10 * SLOT));
    let _paused = lossless(&stream, 2);
    // It falls behind later, and less.
    let mut other = lossless(&stream, 2);
    for seed in 1..=8 {
        stream.publish(&exporter, seed).unwrap();
        read(&stream, &mut other, seed..=seed);
    }
    for seed in 9..=18 {
        stream.publish(&exporter, seed).unwrap();
    }
    let readers = exporter.stats().readers;
    assert!(readers.len() == 1 && readers[0].info.id == 2, "{readers:?}");
    read(&stream, &mut other, 9..=18);
    assert_eq!(exporter.stats().readers[0].lost, 0);
}

#[test]
fn queue_then_wait_waits_beyond_the_backlog() {
    let stream = Stream::new();
    let config = live().slow_readers(SlowReaders::QueueThenWait).max_queued_bytes(10 * SLOT);
    let exporter = stream.exporter_with(config);
    let mut paused = lossless(&stream, 2);
    thread::scope(|scope| {
        let publishes = scope.spawn(|| {
            for seed in 1..=40 {
                stream.publish(&exporter, seed).unwrap();
            }
        });
        until(|| exporter.stats().readers[0].waiting == 10);
        thread::sleep(Duration::from_millis(100));
        assert!(exporter.stats().published <= 12 && !publishes.is_finished());
        read(&stream, &mut paused, 1..=40);
    });
    assert_eq!(exporter.stats().readers[0].lost, 0);
}

#[test]
fn readers_share_the_slots_of_their_backlogs() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live().max_slots(20));
    let mut paused: Vec<_> = (0..3).map(|_| lossless(&stream, 1)).collect();
    // 3 slots that the readers may hold, 2 in reserve: 15 are left, for all backlogs together.
    for seed in 1..=16 {
        stream.publish(&exporter, seed).unwrap();
    }
    let stats = exporter.stats();
    assert_eq!(stats.readers.iter().map(|reader| reader.waiting).collect::<Vec<_>>(), [15; 3]);
    assert!(stats.slots <= 20 && stats.waiting_bytes == 15 * SLOT, "{stats:?}");
    for reader in &mut paused {
        read(&stream, reader, 1..=16);
    }
}

#[test]
fn reader_that_ends_frees_its_backlog() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live());
    let paused = lossless(&stream, 2);
    for seed in 1..=30 {
        stream.publish(&exporter, seed).unwrap();
    }
    drop(paused);
    until(|| exporter.stats().readers.is_empty());
    let all_free = |stats: Stats| stats.free_slots == stats.slots && stats.waiting_bytes == 0;
    until(|| all_free(exporter.stats()));
}

/// The reader learns of every frame that it does not get.
#[test]
fn frames_of_a_dropped_backlog_are_counted() {
    type End = fn(Exporter);
    let ends: [(End, u64); 2] = [(drop, 2), (|exporter| assert!(exporter.disconnect(1, "asked to")), 0)];
    for (end, received) in ends {
        let stream = Stream::new();
        let exporter = stream.exporter_with(live());
        let mut paused = lossless(&stream, 2);
        for seed in 1..=10 {
            stream.publish(&exporter, seed).unwrap();
        }
        end(exporter);
        read(&stream, &mut paused, 1..=received);
        let error = stream.next(&mut paused).unwrap_err();
        let stats = paused.stats();
        assert_eq!((stats.received, stats.lost), (received, 10 - received), "{error}");
    }
}

#[test]
fn slots_of_a_backlog_are_freed_after_it() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live());
    let mut paused = lossless(&stream, 2);
    for seed in 1..=4 {
        stream.publish(&exporter, seed).unwrap();
        read(&stream, &mut paused, seed..=seed);
    }
    let before = exporter.stats().slots;
    for seed in 5..=64 {
        stream.publish(&exporter, seed).unwrap();
    }
    assert!(exporter.stats().slots >= 60);
    read(&stream, &mut paused, 5..=64);
    let start = Instant::now();
    // Nothing is published meanwhile; the reader only has to receive the request.
    while exporter.stats().slots > before + 3 || exporter.stats().retired_bytes > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", exporter.stats());
        assert!(paused.next(Some(Duration::from_millis(20)), &stream.interrupt).unwrap().is_none());
    }
    stream.publish(&exporter, 65).unwrap();
    read(&stream, &mut paused, 65..=65);
    assert_eq!(stats_of(&exporter, 1).lost, 0);
}

/// Whatever waits, and whatever upstream holds, a copy finds a slot, and a reader gets the credit
/// that it is granted.
#[test]
fn backlog_leaves_slots_for_upstream_and_for_joining_readers() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(live().max_slots(16));
    let mut paused = lossless(&stream, 2);
    stream.publish(&exporter, 1).unwrap();
    let held: Vec<_> = (0..4).map(|_| exporter.acquire(SIZE, Purpose::Pool, Wait::No).unwrap()).collect();
    // 16 slots: 2 that the reader may hold, 4 of upstream, 2 in reserve.
    let mut seed = 2;
    while exporter.stats().readers[0].waiting < 8 {
        stream.publish(&exporter, seed).unwrap();
        seed += 1;
    }
    let join = || stream.try_reader(reader::Config::default().max_held(1));
    assert!(join().is_err(), "its credit is in use");
    read(&stream, &mut paused, 1..=seed - 1);
    until(|| exporter.stats().readers[0].waiting == 0);
    let joined = join().expect("there is credit again");
    // It takes one of the slots that frames could wait in.
    let last = seed + 10;
    for seed in seed..last {
        stream.publish(&exporter, seed).unwrap();
    }
    let stats = exporter.stats();
    assert!(stats.readers.iter().all(|stats| stats.info.id != 1), "{stats:?}");
    drop((held, joined));
}
