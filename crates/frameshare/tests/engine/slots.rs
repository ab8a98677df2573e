// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots: several publications of one slot, user data, and waits for a free one.

use crate::stream::{SIZE, Stream, format, frame_in};
use frameshare::{
    Policy, Wait,
    exporter::{self, AcquireError, Frame, Purpose},
    reader,
};
use std::{
    iter,
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
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    exporter.publish(frame_in(&slot), Wait::Forever).unwrap();
    exporter.publish(frame_in(&slot), Wait::Forever).unwrap();
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
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        let keep: Box<dyn std::any::Any + Send> = Box::new(Counter(dropped.clone()));
        exporter.publish(Frame { keep: Some(keep), ..frame_in(&slot) }, Wait::Forever).unwrap();
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

/// Control: without a wait, both attempts fail at once.
#[test]
fn acquisition_waits_for_a_slot_of_its_purpose() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config::default().max_slots(4));
    for purpose in [Purpose::Pool, Purpose::Copy] {
        let held: Vec<_> = iter::from_fn(|| exporter.acquire(SIZE, purpose, Wait::No).ok()).collect();
        assert!(!held.is_empty(), "{purpose:?}");
        for wait in [Wait::No, Wait::For(Duration::from_millis(10)), Wait::Until(Instant::now())] {
            let acquired = exporter.acquire(SIZE, purpose, wait);
            assert!(matches!(acquired, Err(AcquireError::Exhausted { max_slots: 4 })), "{acquired:?}");
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(50));
                drop(held);
            });
            exporter.acquire(SIZE, purpose, Wait::Forever).unwrap();
        });
    }
}
