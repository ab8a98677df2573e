// SPDX-License-Identifier: MIT OR Apache-2.0

//! Policies: lossless readers, timeouts, and eviction.

use crate::stream::{SIZE, Stream, frame_in, holds, until};
use frameshare::{
    Event, Policy, Reason, Wait,
    exporter::{self, Exporter, Frame, LosslessReaders, Notice, PublishError, Purpose},
    monotonic_ns,
    reader::{self, ConnectError, Item, ReadError},
};
use std::{
    sync::{Arc, Mutex, mpsc},
    thread,
    time::{Duration, Instant},
};

#[test]
fn ungranted_lossless_reader_is_refused() {
    let stream = Stream::new();
    let config = exporter::Config::default().lossless_readers(LosslessReaders::None);
    let _exporter = stream.exporter_with(config);
    let config = reader::Config::default().policy(Policy::Lossless);
    let Err(ConnectError::Refused { reason, .. }) = stream.try_reader(config) else {
        panic!("it was granted")
    };
    assert_eq!(reason, Reason::LosslessNotGranted);
}

#[test]
fn unlimited_reader_timeout_never_evicts() {
    let stream = Stream::new();
    let (sender, notices) = mpsc::channel();
    let sender = Mutex::new(sender);
    let config = exporter::Config::default().reader_timeout(Duration::MAX);
    let observer = move |notice| drop(sender.lock().unwrap().send(notice));
    let exporter = Exporter::bind(&stream.endpoint, config, observer).unwrap();
    let slow = stream.reader(Policy::Lossless);
    let seeds = 1..=u64::from(slow.credit());
    seeds.for_each(|seed| _ = stream.publish(&exporter, seed).unwrap());
    thread::scope(|scope| {
        let publishes = scope.spawn(|| stream.publish(&exporter, 99));
        let is_named = |notice| matches!(notice, Notice::ReaderBlocking { .. });
        while !is_named(notices.recv_timeout(Duration::from_secs(20)).unwrap()) {}
        exporter.interrupt().set();
        assert_eq!(publishes.join().unwrap(), Err(PublishError::Interrupted));
    });
    assert_eq!(exporter.reader_count(), 1);
}

#[test]
fn blocking_reader_is_reported_then_evicted() {
    let stream = Stream::new();
    let (sender, notices) = mpsc::channel();
    let sender = Mutex::new(sender);
    // Long enough for the well-behaved reader, on a busy machine too.
    let config = exporter::Config::default().reader_timeout(Duration::from_secs(3));
    let observer = move |notice| drop(sender.lock().unwrap().send(notice));
    let exporter = Exporter::bind(&stream.endpoint, config, observer).unwrap();
    let mut slow = stream.reader(Policy::Lossless);
    let mut good = stream.reader(Policy::Lossless);
    stream.publish(&exporter, 1).unwrap();
    let held = stream.next_frame(&mut slow);
    thread::scope(|scope| {
        scope.spawn(|| {
            for seed in 2..=50 {
                stream.publish(&exporter, seed).unwrap();
            }
        });
        for seed in 1..=50 {
            assert!(holds(&stream.next_frame(&mut good), seed), "the other one loses nothing");
        }
    });
    // Notices are delivered by another thread: the last one may come after the frames.
    let mut reported: Vec<_> =
        (0..4).map_while(|_| notices.recv_timeout(Duration::from_secs(20)).ok()).collect();
    reported.extend(notices.try_iter());
    let [Notice::ReaderAdded(_), Notice::ReaderAdded(_), blocking, removed] = &reported[..] else {
        panic!("{reported:?}")
    };
    assert!(matches!(blocking, Notice::ReaderBlocking { reader, .. } if reader.id == 1), "{reported:?}");
    assert!(
        matches!(removed, Notice::ReaderRemoved { reader, reason: Reason::TooSlow, .. } if reader.id == 1),
        "{reported:?}"
    );
    // It keeps the frames that it holds, and gets the reason.
    assert!(holds(&held, 1));
    let error = stream.next(&mut slow).unwrap_err();
    assert!(matches!(error, ReadError::CutOff { reason: Reason::TooSlow, .. }), "{error}");
}

#[test]
fn released_reader_beside_stuck_one_is_kept() {
    for _ in 0..20 {
        let stream = Stream::new();
        // The exporter waits for no reader at all.
        let config = exporter::Config::default().reader_timeout(Duration::ZERO);
        let exporter = stream.exporter_with(config);
        let config = || reader::Config::default().policy(Policy::Lossless).max_held(1);
        let [mut slow, mut good] = [(); 2].map(|()| stream.try_reader(config()).unwrap());
        stream.publish(&exporter, 1).unwrap();
        let held = (stream.next_frame(&mut slow), stream.next_frame(&mut good));
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        // The exporter has not polled since.
        drop(held.1);
        exporter.publish(Frame { size: SIZE, ..frame_in(&slot) }, Wait::Forever).unwrap();
        assert_eq!(exporter.stats().readers.iter().map(|reader| reader.info.id).collect::<Vec<_>>(), [2]);
    }
}

#[test]
fn ended_leases_are_reclaimed_after_blocked_publish() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let reader = |policy, max_held| {
        stream.try_reader(reader::Config::default().policy(policy).max_held(max_held)).unwrap()
    };
    let (mut full, mut other) = (reader(Policy::Lossless, 1), reader(Policy::Latest, 4));
    let surface = Arc::new(());
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    for _ in 0..20 {
        // As for a decoder's surface: nothing is acquired for it.
        let keep: Option<Box<dyn std::any::Any + Send>> = Some(Box::new(surface.clone()));
        exporter.publish(Frame { keep, ..frame_in(&slot) }, Wait::Forever).unwrap();
        assert_eq!(Arc::strong_count(&surface), 2, "all are back but the one that was just published");
        drop((stream.next_frame(&mut full), stream.next_frame(&mut other)));
    }
}

#[test]
fn reader_with_unread_messages_reads_eviction_reason() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    stream.publish(&exporter, 1).unwrap();
    // A reader for which user data, and the connection, are kept.
    let held = stream.next_frame(&mut reader);
    until(|| {
        exporter.send_event(Event { kind: 7, sticky: false, payload: Vec::new() }).unwrap();
        exporter.reader_count() == 0
    });
    let error = loop {
        match stream.next(&mut reader) {
            Ok(item) => assert!(matches!(item, Item::Event(_)), "{item:?}"),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, ReadError::CutOff { reason: Reason::LimitExceeded, .. }), "{error}");
    assert!(holds(&held, 1));
}

/// Readers that do nothing, with different credits, so that each is full at another frame.
#[test]
fn several_stuck_readers_cost_no_more_than_one() {
    let stream = Stream::new();
    let limit = Duration::from_secs(5);
    let exporter = stream.exporter_with(exporter::Config::default().reader_timeout(limit));
    let stuck: Vec<_> = (1..=7)
        .map(|credit| {
            let config = reader::Config::default().policy(Policy::Lossless).max_held(credit);
            stream.try_reader(config).unwrap()
        })
        .collect();
    let mut good = stream.reader(Policy::Lossless);
    let start = Instant::now();
    for seed in 1..=9 {
        stream.publish(&exporter, seed).unwrap();
        assert!(holds(&stream.next_frame(&mut good), seed));
    }
    let took = start.elapsed();
    assert!(took >= limit && took < 2 * limit, "the stream stood still for {took:?}");
    let left: Vec<_> = exporter.stats().readers.into_iter().map(|stats| stats.info.id).collect();
    assert_eq!(left, [8]);
    drop(stuck);
}

/// The time that one reader costs is not counted for another one that had nothing to do.
#[test]
fn stuck_reader_takes_no_time_from_a_good_one() {
    let stream = Stream::new();
    let limit = Duration::from_secs(5);
    let exporter = stream.exporter_with(exporter::Config::default().reader_timeout(limit));
    let stuck = stream.reader(Policy::Lossless);
    let config = reader::Config::default().policy(Policy::Lossless).max_held(2);
    let mut good = stream.try_reader(config).unwrap();
    // It holds the newest frame until the next one comes, as a viewer does.
    let mut shown = None;
    for seed in 1..=5 {
        stream.publish(&exporter, seed).unwrap();
        shown = Some(stream.next_frame(&mut good));
    }
    assert_eq!(exporter.reader_count(), 1, "the stuck one is evicted");
    // Now it pauses, for less than the limit.
    stream.publish(&exporter, 6).unwrap();
    thread::scope(|scope| {
        let publishes = scope.spawn(|| stream.publish(&exporter, 7).unwrap());
        thread::sleep(limit / 2);
        drop(shown.take());
        publishes.join().unwrap();
    });
    assert_eq!((exporter.reader_count(), exporter.stats().readers[0].lost), (1, 0));
    drop(stuck);
}

#[test]
fn late_frame_is_for_lossless_readers_only() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let (mut every, mut newest) = (stream.reader(Policy::Lossless), stream.reader(Policy::Latest));
    let never = Some(u64::MAX);
    for (seed, late_after) in [(1, None), (2, Some(0)), (3, Some(monotonic_ns())), (4, never)] {
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        exporter.publish(Frame { late_after, ..frame_in(&slot) }, Wait::Forever).unwrap();
        let frame = stream.next_frame(&mut every);
        assert_eq!((frame.descriptor().sequence.0, frame.lost_before()), (seed, 0));
    }
    let got = [(); 2].map(|()| {
        let frame = stream.next_frame(&mut newest);
        (frame.descriptor().sequence.0, frame.lost_before())
    });
    assert_eq!(got, [(1, 0), (4, 2)]);
    assert_eq!(exporter.stats().readers[1].lost, 2);
}

/// The frame that has to wait becomes late meanwhile.
#[test]
fn frame_that_waits_too_long_is_late() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config::default().reader_timeout(Duration::MAX));
    let config = reader::Config::default().policy(Policy::Lossless).max_held(1);
    let mut every = stream.try_reader(config).unwrap();
    let mut newest = stream.reader(Policy::Latest);
    stream.publish(&exporter, 1).unwrap();
    let held = stream.next_frame(&mut every);
    let late_after = Some(monotonic_ns() + 50_000_000);
    thread::scope(|scope| {
        let publishes = scope.spawn(|| {
            let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
            exporter.publish(Frame { late_after, ..frame_in(&slot) }, Wait::Forever).unwrap();
        });
        thread::sleep(Duration::from_millis(100));
        assert!(!publishes.is_finished());
        drop(held);
    });
    assert_eq!(stream.next_frame(&mut every).descriptor().sequence.0, 2);
    stream.publish(&exporter, 3).unwrap();
    let got = [(); 2].map(|()| {
        let frame = stream.next_frame(&mut newest);
        (frame.descriptor().sequence.0, frame.lost_before())
    });
    assert_eq!(got, [(1, 0), (3, 1)]);
}

#[test]
fn revoked_reader_loses_its_frames() {
    type End = fn(&Exporter, u64, &str) -> bool;
    // Control: a disconnected reader keeps its frames.
    let ends: [(End, _, _); 2] =
        [(Exporter::disconnect, Reason::Disconnected, 1), (Exporter::revoke, Reason::TooSlow, 0)];
    for (end, expected, kept) in ends {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader = stream.reader(Policy::Latest);
        stream.publish(&exporter, 1).unwrap();
        let held = stream.next_frame(&mut reader);
        assert!(!end(&exporter, 99, "no such reader"));
        assert!(end(&exporter, 1, "its frames are needed"));
        let stats = exporter.stats();
        assert_eq!((stats.slots - stats.free_slots, stats.readers.len()), (kept, 0));
        let error = stream.next(&mut reader).unwrap_err();
        assert!(matches!(error, ReadError::CutOff { reason, .. } if reason == expected), "{error}");
        assert!(error.to_string().ends_with("its frames are needed"), "{error}");
        drop(held);
    }
}

#[test]
fn frames_of_readers_that_left_can_be_revoked() {
    let leave: [fn(&Exporter, reader::Reader); 2] =
        [|_, reader| drop(reader), |exporter, _reader| assert!(exporter.disconnect(1, "for maintenance"))];
    for leave in leave {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader = stream.reader(Policy::Latest);
        let mut other = stream.reader(Policy::Latest);
        stream.publish(&exporter, 1).unwrap();
        let held = [&mut reader, &mut other].map(|reader| stream.next_frame(reader));
        leave(&exporter, reader);
        until(|| exporter.reader_count() == 1);
        let of = |readers: &[exporter::ReaderStats]| {
            readers.iter().map(|one| (one.info.id, one.held)).collect::<Vec<_>>()
        };
        let stats = exporter.stats();
        assert_eq!((of(&stats.readers), of(&stats.draining)), (vec![(2, 1)], vec![(1, 1)]));
        assert!(exporter.revoke(1, "its frames are needed"));
        let stats = exporter.stats();
        assert_eq!((of(&stats.readers), of(&stats.draining)), (vec![(2, 1)], vec![]));
        assert!(!exporter.revoke(1, "it holds nothing any more"));
        // The other reader has the frame too, and keeps it.
        let [lost, kept] = held;
        drop(lost);
        for seed in 2..=20 {
            stream.publish(&exporter, seed).unwrap();
            assert!(holds(&stream.next_frame(&mut other), seed));
        }
        assert!(holds(&kept, 1));
        drop(kept);
        let stats = exporter.stats();
        assert_eq!(stats.free_slots, stats.slots);
    }
}

#[test]
fn disconnected_reader_reads_reason_and_keeps_frames() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let (mut first, mut other) = (stream.reader(Policy::Lossless), stream.reader(Policy::Lossless));
    stream.publish(&exporter, 1).unwrap();
    let held = stream.next_frame(&mut first);
    assert!(!exporter.disconnect(99, "no such reader"));
    assert_eq!(exporter.reader_count(), 2);
    assert!(exporter.disconnect(1, "for maintenance"));
    assert!(!exporter.disconnect(1, "again"));
    let left: Vec<_> = exporter.stats().readers.into_iter().map(|stats| stats.info.id).collect();
    assert_eq!(left, [2]);
    let error = stream.next(&mut first).unwrap_err();
    assert!(matches!(error, ReadError::CutOff { reason: Reason::Disconnected, .. }), "{error}");
    assert!(error.to_string().ends_with("for maintenance"), "{error}");
    for seed in 2..=20 {
        assert!(holds(&stream.next_frame(&mut other), seed - 1));
        stream.publish(&exporter, seed).unwrap();
    }
    assert!(holds(&held, 1), "its slot is not written while it is held");
}
