// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots: several publications of one slot, user data, and exhausted memory.

use crate::stream::{SIZE, Stream, format, frame_in};
use frameshare::{
    Interrupt, MemoryKind, Policy,
    exporter::{self, AcquireError, Frame, Purpose},
    memory::{MemoryError, Operation},
    reader,
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

#[test]
fn slot_published_twice_is_free_after_both_leases() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    exporter.publish(frame_in(&slot), &stream.interrupt).unwrap();
    exporter.publish(frame_in(&slot), &stream.interrupt).unwrap();
    drop(slot);
    let first = stream.next_frame(&mut reader);
    let second = stream.next_frame(&mut reader);
    assert_eq!((exporter.stats().slots, exporter.stats().free_slots), (1, 0));
    drop(first);
    assert_eq!(exporter.stats().free_slots, 0);
    drop(second);
    assert_eq!(exporter.stats().free_slots, 1);
}

#[test]
fn keep_is_dropped_after_last_lease() {
    struct Counter(Arc<AtomicUsize>);
    impl Drop for Counter {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let stream = Stream::new();
    let exporter = stream.exporter();
    let dropped = Arc::new(AtomicUsize::new(0));
    let publish = || {
        let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
        let keep: Box<dyn std::any::Any + Send> = Box::new(Counter(dropped.clone()));
        exporter.publish(Frame { keep: Some(keep), ..frame_in(&slot) }, &stream.interrupt).unwrap();
    };
    publish();
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "no reader: it is dropped at once");
    let (mut one, mut two) = (stream.reader(Policy::Latest), stream.reader(Policy::Latest));
    publish();
    let (first, second) = (stream.next_frame(&mut one), stream.next_frame(&mut two));
    drop(first);
    exporter.reclaim();
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    drop(second);
    exporter.reclaim();
    assert_eq!(dropped.load(Ordering::SeqCst), 2);
}

#[test]
fn slot_user_data_is_dropped_before_memory() {
    struct Kept(AtomicUsize, Arc<AtomicUsize>);
    impl Drop for Kept {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }
    let stream = Stream::new();
    let exporter = stream.exporter();
    let mut reader = stream.reader(Policy::Latest);
    let dropped = Arc::new(AtomicUsize::new(0));
    let keep = |frame: &reader::Frame| {
        let kept = frame.keep_with_slot(|| Kept(AtomicUsize::new(0), dropped.clone())).unwrap();
        kept.0.fetch_add(1, Ordering::SeqCst)
    };
    for seed in 1..=4 {
        stream.publish(&exporter, seed).unwrap();
        let frame = stream.next_frame(&mut reader);
        assert_eq!(keep(&frame), seed as usize - 1, "one slot is used again and again");
        assert!(frame.keep_with_slot(|| 1_u32).is_none(), "something else is kept there");
    }
    stream.publish(&exporter, 5).unwrap();
    let held = stream.next_frame(&mut reader);
    exporter.set_format(format("another"));
    stream.publish_sized(&exporter, 6, SIZE * 100).unwrap();
    drop(stream.next_frame(&mut reader));
    assert_eq!((keep(&held), dropped.load(Ordering::SeqCst)), (4, 0), "a frame of the old size is out");
    drop(held);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn exhausted_memory_reuses_large_enough_slots() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let interrupt = Interrupt::new().unwrap();
    let wait = |size| {
        let cause = io::Error::from(io::ErrorKind::OutOfMemory);
        let error = MemoryError::new(Operation::Allocate, size, MemoryKind::Host, cause);
        exporter.wait_for_slot(size, error.into(), &interrupt)
    };
    assert!(matches!(wait(SIZE), Err(AcquireError::Memory(_))), "there is none at all");
    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    let held = slot.size();
    drop(slot);
    assert_eq!(wait(SIZE).unwrap().size(), held);
    assert!(matches!(wait(held + 1), Err(AcquireError::Memory(_))), "it is too small");
    let _held = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    let why = AcquireError::Exhausted { max_slots: 1 };
    let begin = Instant::now();
    let waited = exporter.wait_for_slot_within(SIZE, why, Duration::from_millis(10), &interrupt);
    assert!(matches!(waited, Err(AcquireError::Exhausted { max_slots: 1 })), "{waited:?}");
    assert!(begin.elapsed() < exporter::Config::default().reader_timeout);
}

#[test]
fn slot_waiter_gets_first_released_slot() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let interrupt = Interrupt::new().unwrap();
    let wait = || {
        let cause = io::Error::from(io::ErrorKind::OutOfMemory);
        let error = MemoryError::new(Operation::Allocate, SIZE, MemoryKind::Host, cause);
        let begin = Instant::now();
        exporter.wait_for_slot(SIZE, error.into(), &interrupt).unwrap();
        begin.elapsed()
    };
    let later = |what: Box<dyn Send>| {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(what);
        })
    };
    let limit = exporter::Config::default().reader_timeout;
    // Neither sends a wake-up: an upstream holder of a slot, and a `latest` reader.
    let upstream = later(Box::new(exporter.acquire(SIZE, Purpose::Pool).unwrap()));
    assert!(wait() < limit);
    upstream.join().unwrap();
    let mut reader = stream.reader(Policy::Latest);
    stream.publish(&exporter, 1).unwrap();
    let reading = later(Box::new(stream.next_frame(&mut reader)));
    assert!(wait() < limit);
    reading.join().unwrap();
}
