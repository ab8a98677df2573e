// SPDX-License-Identifier: MIT OR Apache-2.0

//! Credit: the reservation at admission, and the share of upstream.

use crate::stream::{SIZE, Stream, holds, until};
use frameshare::{
    Reason, Wait,
    exporter::{self, AcquireError, Purpose},
    reader::{self, ConnectError},
};

#[test]
fn reader_without_free_credit_is_refused() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config::default().max_slots(12).max_held_limit(6));
    let ask = |max_held| stream.try_reader(reader::Config::default().max_held(max_held));
    let (first, second) = (ask(8).unwrap(), ask(8).unwrap());
    assert_eq!((first.credit(), second.credit()), (6, 4), "the limit, then the rest of 12 - 2");
    let Err(ConnectError::Refused { reason, text }) = ask(1) else { panic!("there was credit left") };
    assert!(reason == Reason::NoCreditLeft && text.contains("all 12 slots are promised"), "{text}");
    drop(first);
    until(|| exporter.reader_count() == 1);
    assert_eq!(ask(8).unwrap().credit(), 6);
}

#[test]
fn upstream_cannot_take_reserved_slots() {
    let stream = Stream::new();
    let exporter = stream.exporter_with(exporter::Config::default().max_slots(12));
    let mut reader = stream.try_reader(reader::Config::default().max_held(4)).unwrap();
    let mut pool = Vec::new();
    let error = loop {
        match exporter.acquire(SIZE, Purpose::Pool, Wait::No) {
            Ok(slot) => pool.push(slot),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AcquireError::Exhausted { max_slots: 12 }), "{error}");
    assert_eq!(pool.len(), 6, "12 slots less the reader's 4 and two more");
    // The readers' share is enough for copies, even when the reader holds all its credit.
    let held: Vec<_> = (1..=4)
        .map(|seed| {
            stream.publish(&exporter, seed).unwrap();
            stream.next_frame(&mut reader)
        })
        .collect();
    for seed in 5..=20 {
        stream.publish(&exporter, seed).unwrap();
    }
    assert!(held.iter().zip(1..).all(|(frame, seed)| holds(frame, seed)));
    // A joining reader gets nothing while upstream holds the rest.
    let joining = stream.try_reader(reader::Config::default());
    assert!(matches!(joining, Err(ConnectError::Refused { reason: Reason::NoCreditLeft, .. })));
}
