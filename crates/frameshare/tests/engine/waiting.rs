// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waiting: interrupts, wake-ups, and sleep on a descriptor.

use crate::stream::{SIZE, Stream, frame_in, holds};
use frameshare::{
    Event, Interrupt, Policy, Sequence, Wait,
    exporter::{self, PublishError, Purpose},
    observer::Observer,
    reader::{self, ConnectError, Item, ReadError, Reader},
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

#[test]
fn every_wait_can_be_interrupted() {
    let stream = Stream::new();
    let interrupt = Interrupt::new().unwrap();
    let config = reader::Config::default().connection_timeout(None);
    let interrupted = |wait: &dyn Fn()| {
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(30));
                interrupt.set();
            });
            wait();
        });
        interrupt.clear();
    };
    interrupted(&|| {
        let error = Reader::connect(&stream.endpoint, config.clone(), &interrupt).unwrap_err();
        assert!(matches!(error, ConnectError::Interrupted), "{error}");
    });
    let exporter = stream.exporter_with(exporter::Config::default().interrupt(Some(interrupt.clone())));
    interrupted(&|| assert!(exporter.wait_for_reader(Wait::Forever).is_err()));
    let mut reader = stream.reader(Policy::Lossless);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            interrupt.set();
        });
        assert!(matches!(reader.next(None, &interrupt), Err(ReadError::Interrupted)));
    });
    interrupt.clear();
    for seed in 1..=4 {
        stream.publish(&exporter, seed).unwrap();
    }
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    interrupted(&|| {
        assert_eq!(exporter.publish(frame_in(&slot), Wait::Forever), Err(PublishError::Interrupted));
    });
    interrupted(&|| assert!(exporter.drain(Wait::For(Duration::from_secs(60))).is_err()));
    // An interrupted frame is not published: the sequence continues without a gap.
    for seed in 1..=4 {
        assert!(holds(&stream.next_frame(&mut reader), seed));
    }
    assert_eq!(exporter.drain(Wait::For(Duration::from_secs(60))), Ok(true));
    assert_eq!(exporter.publish(frame_in(&slot), Wait::Forever), Ok(Sequence(5)));
    assert_eq!(exporter.drain(Wait::For(Duration::ZERO)), Ok(false));
}

/// Every option of type `Duration`, and every limit of a call, at its maximum.
#[test]
fn longest_durations_are_no_limit() {
    const LONGEST: Duration = Duration::MAX;
    let stream = Stream::new();
    let exporter = stream.exporter_with(
        exporter::Config::default().reader_timeout(LONGEST).max_queued_time(LONGEST).fence_timeout(LONGEST),
    );
    let interrupt = Interrupt::new().unwrap();
    let config = reader::Config::default()
        .policy(Policy::Lossless)
        .max_held(1)
        .connection_timeout(Some(LONGEST))
        .fence_timeout(LONGEST);
    let mut reader = Reader::connect(&stream.endpoint, config, &interrupt).unwrap();
    let mut observer = Observer::subscribe(&stream.endpoint, LONGEST, LONGEST).unwrap();
    assert_eq!(exporter.wait_for_reader(Wait::For(LONGEST)), Ok(true));
    for seed in 1..=3 {
        stream.publish(&exporter, seed).unwrap();
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::For(LONGEST)).unwrap();
        drop(slot);
        let item = reader.next(Some(LONGEST), &interrupt).unwrap();
        assert!(matches!(item, Some(Item::Frame(frame)) if holds(&frame, seed)));
    }
    assert_eq!(exporter.drain(Wait::For(LONGEST)), Ok(true));
    assert!(observer.snapshot().is_ok());
    assert!(frameshare::wait_for_deferred_drops(LONGEST));
}

#[test]
fn publication_without_room_ends_at_its_timeout() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Lossless);
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    let publish = |wait| exporter.publish(frame_in(&slot), wait);
    let mut published = 0;
    while let Ok(sequence) = publish(Wait::No) {
        published += 1;
        assert_eq!(sequence, Sequence(published));
    }
    let soon = Duration::from_millis(10);
    for wait in [Wait::No, Wait::For(soon), Wait::Until(Instant::now() + soon)] {
        assert_eq!(publish(wait), Err(PublishError::NoRoom), "{wait:?}");
    }
    // The reader has the frames before, and then the one that had no room.
    assert_eq!(stream.next_frame(&mut reader).descriptor().sequence, Sequence(1));
    assert_eq!(publish(Wait::For(Duration::from_secs(60))), Ok(Sequence(published + 1)));
}

/// Returns whether a reader's descriptor becomes readable within this number of seconds.
fn poll_for(reader: &Reader, seconds: i64) -> bool {
    let timeout = Timespec { tv_sec: seconds, tv_nsec: 0 };
    poll(&mut [PollFd::new(&reader.wake_fd(), PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

#[test]
fn woken_reader_sleeps_again() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(100));
            stream.publish(&exporter, 1).unwrap();
        });
        assert!(holds(&stream.next_frame(&mut reader), 1));
    });
    // A wake-up of what it has read already may come late, and `next` consumes it.
    let sleeps = (0..20).any(|_| {
        let nothing = reader.next(Some(Duration::from_millis(1)), &stream.interrupt);
        assert!(matches!(nothing, Ok(None)), "{nothing:?}");
        !poll_for(&reader, 0)
    });
    assert!(sleeps, "it would be woken by what has woken it before");
}

#[test]
fn event_loop_sleeps_on_one_descriptor() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    // A wake-up of what it has read already may come late, and `try_next` consumes it.
    let sleeps = (0..20).any(|_| {
        assert!(reader.try_next().unwrap().is_none());
        !poll_for(&reader, 0)
    });
    assert!(sleeps, "it would be woken by nothing");
    for seed in 1..=100 {
        stream.publish(&exporter, seed).unwrap();
        assert!(poll_for(&reader, 20), "asleep, and not woken by frame {seed}");
        assert!(matches!(reader.try_next(), Ok(Some(Item::Frame(_)))));
        assert!(reader.try_next().unwrap().is_none());
    }
    exporter.end_of_stream();
    assert!(poll_for(&reader, 20));
    assert!(matches!(reader.try_next(), Ok(Some(Item::EndOfStream))));
    assert!(reader.try_next().unwrap().is_none());
    drop(exporter);
    assert!(poll_for(&reader, 20));
    assert!(matches!(reader.try_next(), Err(ReadError::Stopped(_))));
}

/// A message that is sent only when there is room also wakes a reader that sleeps on the
/// descriptor.
#[test]
fn delayed_message_wakes_descriptor_sleeper() {
    for _ in 0..20 {
        let stream = Stream::new();
        let exporter = stream.exporter();
        let mut reader = stream.reader(Policy::Latest);
        for kind in 0..40 {
            exporter.send_event(Event { kind, sticky: false, payload: vec![0; 30_000] }).unwrap();
        }
        exporter.end_of_stream();
        let mut events = 0;
        loop {
            match reader.try_next().unwrap() {
                Some(Item::EndOfStream) => break,
                Some(Item::Event(_)) => events += 1,
                Some(_) => {}
                None => {
                    assert!(poll_for(&reader, 20), "no wake-up after {events} events");
                }
            }
        }
        assert_eq!(events, 40);
    }
}

/// One of them may reclaim the slot that the other waits for.
#[test]
fn concurrent_waits_miss_no_wake_up() {
    // Every fifth one would miss its wake-up, and sleep for a second: until it has to report the
    // reader. All of this takes less than that.
    const FRAMES: u64 = 400;
    let stream = Stream::new();
    let exporter = stream.exporter();
    let config = reader::Config::default().policy(Policy::Lossless).max_held(1);
    let mut reader = stream.try_reader(config).unwrap();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                exporter.drain(Wait::For(Duration::from_millis(20))).unwrap();
            }
        });
        scope.spawn(|| {
            let begin = Instant::now();
            for seed in 1..=FRAMES {
                stream.publish(&exporter, seed).unwrap();
                if begin.elapsed() > Duration::from_secs(40) {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            exporter.end_of_stream();
        });
        while !matches!(stream.next(&mut reader), Ok(Item::EndOfStream)) {
            // Long enough for both to go to sleep.
            thread::sleep(Duration::from_micros(300));
        }
    });
    assert_eq!(exporter.stats().published, FRAMES, "within 40 seconds");
}

#[test]
fn exporter_falling_asleep_misses_no_release() {
    const FRAMES: u64 = 4000;
    let stream = Stream::new();
    let exporter = stream.exporter();
    let config = reader::Config::default().policy(Policy::Lossless).max_held(1).spin(100);
    let mut reader = stream.try_reader(config).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 1..=FRAMES {
                let frame = stream.next_frame(&mut reader);
                let begin = Instant::now();
                // Before, after and while the exporter falls asleep, which it does after some 60
                // us.
                while begin.elapsed() < Duration::from_nanos(50_000 + sequence * 37 % 20_000) {
                    std::hint::spin_loop();
                }
                drop(frame);
            }
        });
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        let mut missed = 0;
        for _ in 0..FRAMES {
            let begin = Instant::now();
            exporter.publish(frame_in(&slot), Wait::Forever).unwrap();
            // A missed release costs a second, and many would be missed. An emulated machine takes
            // milliseconds for each frame.
            missed += u32::from(begin.elapsed() > Duration::from_millis(900));
            assert!(missed < 20, "the exporter slept over releases");
        }
    });
}
