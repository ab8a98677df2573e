// SPDX-License-Identifier: MIT OR Apache-2.0

//! Destructors of user data that panic: on the service thread and on the caller's.

use crate::stream::{SIZE, Stream, frame_in, until};
use frameshare::{
    Policy, Wait,
    exporter::{Exporter, Frame, InvalidFrame, PublishError, Purpose},
};
use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

/// Reports the thread that drops it, and panics.
struct Panics(Sender<Option<String>>);

impl Drop for Panics {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().name().map(str::to_owned));
        panic!("on purpose");
    }
}

fn keep(dropped: &Sender<Option<String>>) -> Option<Box<dyn Any + Send>> {
    Some(Box::new(Panics(dropped.clone())))
}

fn publish(exporter: &Exporter, keep: Option<Box<dyn Any + Send>>) {
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    exporter.publish(Frame { keep, ..frame_in(&slot) }, Wait::Forever).unwrap();
}

/// Waits for so many drops, and returns whether each was on the service thread.
fn are_of_service(drops: &Receiver<Option<String>>, count: u32) -> bool {
    let threads = (0..count).map(|_| drops.recv_timeout(Duration::from_secs(20)).unwrap());
    threads.filter(|thread| thread.as_deref() == Some("frameshare")).count() == count as usize
}

#[test]
fn panics_on_service_thread_end_neither_stream_nor_thread() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let (dropped, drops) = channel();
    for _ in 0..3 {
        let mut reader = stream.reader(Policy::Latest);
        publish(&exporter, keep(&dropped));
        publish(&exporter, keep(&dropped));
        let held = [(); 2].map(|()| stream.next_frame(&mut reader));
        drop(reader);
        drop(held);
        // Its end, which the service thread notices, ends the leases.
        assert!(are_of_service(&drops, 2));
    }
    let mut reader = stream.reader(Policy::Latest);
    publish(&exporter, None);
    drop(stream.next_frame(&mut reader));
    until(|| {
        let stats = exporter.stats();
        stats.free_slots == stats.slots
    });
}

#[test]
fn panics_on_callers_thread_continue_when_the_call_is_done() {
    let stream = Stream::new();
    let exporter = stream.exporter();
    let (dropped, drops) = channel();
    let mut reader = stream.reader(Policy::Latest);
    let panics = |count, call: &mut dyn FnMut()| {
        let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"on purpose"));
        assert!(!are_of_service(&drops, count));
    };
    let release_two = |reader: &mut _| {
        publish(&exporter, keep(&dropped));
        publish(&exporter, keep(&dropped));
        drop([(); 2].map(|()| stream.next_frame(reader)));
    };
    release_two(&mut reader);
    panics(2, &mut || exporter.reclaim());
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    release_two(&mut reader);
    // The publication that finds them released takes place all the same.
    panics(2, &mut || _ = exporter.publish(frame_in(&slot), Wait::Forever));
    assert_eq!(stream.next_frame(&mut reader).descriptor().sequence.0, 5);
    // One that is refused drops its own.
    let refused = || Frame { offset: 1, keep: keep(&dropped), ..frame_in(&slot) };
    panics(1, &mut || _ = exporter.publish(refused(), Wait::Forever));
    let refused = Frame { offset: 1, ..frame_in(&slot) };
    let error = exporter.publish(refused, Wait::Forever).unwrap_err();
    assert!(matches!(error, PublishError::Invalid(InvalidFrame::Field(_))), "{error}");
    drop(slot);
    until(|| {
        let stats = exporter.stats();
        stats.free_slots == stats.slots
    });
    assert_eq!(exporter.reader_count(), 1);
}
