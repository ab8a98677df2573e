// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sleep on the futex that the readers of one user share, or on sockets where the kernel has no
//! futex_waitv.

use crate::stream::{Stream, frame_in, holds, until};
use frameshare::{
    Event, MAX_CREDIT, Policy, Wait,
    exporter::Purpose,
    machine::has_futex_waitv,
    reader::{self, Item, Reader, Stats},
};
use std::{
    io::Write,
    ops::RangeBounds,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

const READERS: usize = 8;
const FRAMES: u64 = 200;
/// Wake-ups after whose loss a reader uses its socket only.
const MAX_MISSED: u64 = 3;

/// Asserts the number of each reader's sleeps on the futex, and that none lost its trust in it.
/// Without futex_waitv every sleep has to be on a socket, and the test is reported as skipped.
fn assert_futex_sleeps(test: &str, readers: &[Stats], expected: impl RangeBounds<u64>) {
    for stats in readers {
        let (sleeps, missed) = (stats.futex_sleeps, stats.missed_wakes);
        match has_futex_waitv() {
            true => assert!(expected.contains(&sleeps) && missed < MAX_MISSED, "{stats:?}"),
            false => assert_eq!((sleeps, missed), (0, 0), "{stats:?}"),
        }
    }
    if !has_futex_waitv() {
        let line = format!("SKIP {test}: readers slept on sockets, without futex_waitv\n");
        std::io::stdout().write_all(line.as_bytes()).unwrap();
    }
}

/// Publishes at a rate at which readers sleep between frames.
fn publish_slowly(stream: &Stream, exporter: &frameshare::exporter::Exporter, frames: u64) {
    for seed in 1..=frames {
        thread::sleep(Duration::from_millis(2));
        stream.publish(exporter, seed).unwrap();
    }
}

#[test]
fn readers_of_one_user_are_woken_by_futex() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let read = |mut reader: Reader| {
        for seed in 1..=FRAMES {
            assert!(holds(&stream.next_frame(&mut reader), seed));
        }
        reader.stats()
    };
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|_| stream.reader(Policy::Lossless)).collect();
        let readers: Vec<_> = readers.into_iter().map(|reader| scope.spawn(|| read(reader))).collect();
        publish_slowly(&stream, &exporter, FRAMES);
        let stats: Vec<_> = readers.into_iter().map(|reader| reader.join().unwrap()).collect();
        assert_futex_sleeps("readers_of_one_user_are_woken_by_futex", &stats, 1..);
    });
}

/// Readers that poll a descriptor beside ones that sleep on the futex.
#[test]
fn pollers_and_futex_sleepers_share_a_stream() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut sleeper = stream.reader(Policy::Lossless);
    let mut set = reader::ReaderSet::default();
    let key = set.add(stream.reader(Policy::Lossless));
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| {
            (1..=FRAMES).for_each(|seed| assert!(holds(&stream.next_frame(&mut sleeper), seed)));
        });
        let polling = scope.spawn(|| {
            let mut frames = 0;
            while frames < FRAMES {
                let (_, item) = set.next(Some(Duration::from_secs(20)), &stream.interrupt).unwrap().unwrap();
                frames += u64::from(matches!(item.unwrap(), Item::Frame(_)));
            }
        });
        publish_slowly(&stream, &exporter, FRAMES);
        sleeping.join().unwrap();
        polling.join().unwrap();
    });
    assert_futex_sleeps("pollers_and_futex_sleepers_share_a_stream", &[sleeper.stats()], 1..);
    assert_eq!(set.get(key).unwrap().stats().futex_sleeps, 0);
}

/// Events and the end come without a frame, the exporter's close message and its slots too.
#[test]
fn futex_sleeper_gets_messages_without_frames() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    let event = |kind: u32| Event { kind, sticky: false, payload: kind.to_le_bytes().into() };
    let received = AtomicU32::new(0);
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let mut kinds = Vec::new();
            loop {
                match stream.next(&mut reader) {
                    Ok(Item::Event(event)) => {
                        kinds.push(event.kind);
                        received.store(event.kind, Ordering::SeqCst);
                    }
                    Ok(Item::EndOfStream) => kinds.push(0),
                    Ok(_) => {}
                    Err(_) => return (kinds, reader.stats()),
                }
            }
        });
        for kind in 1..=50 {
            until(|| received.load(Ordering::SeqCst) == kind - 1);
            thread::sleep(Duration::from_millis(2));
            exporter.send_event(event(kind)).unwrap();
        }
        exporter.end_of_stream();
        drop(exporter);
        let (kinds, stats) = reading.join().unwrap();
        assert_eq!(kinds, (1..=50).chain([0]).collect::<Vec<_>>());
        assert_futex_sleeps("futex_sleeper_gets_messages_without_frames", &[stats], 1..);
    });
}

/// A stream that pauses for longer than a sleep on the futex may last.
#[test]
fn reader_sleeps_on_its_socket_while_a_stream_pauses() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let config = reader::Config::default().policy(Policy::Lossless).max_queued(MAX_CREDIT);
    let mut reader = stream.try_reader(config).unwrap();
    thread::scope(|scope| {
        let reading = scope.spawn(|| {
            (0..3).for_each(|_| drop(stream.next_frame(&mut reader)));
            reader.stats()
        });
        for _ in 0..3 {
            thread::sleep(Duration::from_millis(400));
            let slot = exporter.acquire(100, Purpose::Copy, Wait::No).unwrap();
            exporter.publish(frame_in(&slot), Wait::Forever).unwrap();
        }
        let stats = reading.join().unwrap();
        // One for each pause, besides those that messages end.
        assert_futex_sleeps("reader_sleeps_on_its_socket_while_a_stream_pauses", &[stats], 1..100);
    });
}
