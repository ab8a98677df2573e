// SPDX-License-Identifier: MIT OR Apache-2.0

//! A queue between two threads on one mapping, with frames of plain memory that are ordered by the
//! queue's words alone. ThreadSanitizer sees every access here (`make sanitize`), which it does not
//! if two processes, or two mappings, share a page.
//!
//! # Safety
//!
//! Frames are plain memory that both threads reach. The test shows that no two of them do at once.
#![allow(unsafe_code)]

use frameshare_protocol::{
    Descriptor, EntryIndex, Sequence, SlotId,
    page::{ClaimState, claims_size, queue_size},
};
use frameshare_queue::{Consumer, Page, Producer, Revocation};
use std::{
    cell::UnsafeCell,
    hint,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
};

const ENTRIES: usize = 3;
/// One more than entries, so that there always is an unread one.
const SLOTS: usize = ENTRIES + 1;
const WORDS: usize = 16;

/// The memory of the frames.
struct Slots([UnsafeCell<[u64; WORDS]>; SLOTS]);

// SAFETY: the queue decides which thread may reach which slot.
unsafe impl Sync for Slots {}

#[derive(Clone)]
struct Memory(Arc<Vec<AtomicU64>>);

impl Memory {
    fn new(bytes: usize) -> Self {
        Self(Arc::new((0..bytes / 8).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl Page for Memory {
    type Word = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Takes this number of frames.
fn read(consumer: &Consumer<Memory>, slots: &Slots, frames: u64) {
    let (mut last, mut count) = (Sequence(0), 0);
    while count < frames {
        let Some(found) = consumer.oldest() else {
            thread::yield_now();
            continue;
        };
        let found = found.expect("the descriptors are honest");
        let sequence = found.descriptor.sequence;
        if !consumer.claim(found.entry, sequence) {
            continue;
        }
        assert!(sequence > last, "out of order");
        // SAFETY: the frame is claimed, so no thread writes it until it is released.
        let words = unsafe { *slots.0[found.descriptor.slot.index as usize].get() };
        assert_eq!(words, [sequence.0; WORDS], "the frame was written while it was leased");
        consumer.release(found.entry, sequence);
        (last, count) = (sequence, count + 1);
    }
}

/// Publishes until the end, revoking frames that are not taken in time.
fn write(producer: &Producer<Memory>, slots: &Slots, is_over: &AtomicBool) {
    let mut leases: [Option<(Sequence, usize)>; ENTRIES] = [None; ENTRIES];
    for sequence in (1..).map(Sequence) {
        if is_over.load(Relaxed) {
            break;
        }
        for (entry, lease) in leases.iter_mut().enumerate() {
            let Some((of, _)) = *lease else { continue };
            if producer.state(EntryIndex(entry), of).expect("the reader is honest") == ClaimState::Released {
                *lease = None;
            }
        }
        let entry = leases.iter().position(Option::is_none).or_else(|| {
            let oldest = (0..ENTRIES).min_by_key(|entry| leases[*entry])?;
            let (of, _) = leases[oldest]?;
            let revoked =
                producer.revoke(EntryIndex(oldest), of).expect("the reader is honest") == Revocation::Revoked;
            revoked.then(|| leases[oldest] = None).map(|()| oldest)
        });
        let Some(entry) = entry else {
            producer.skip(sequence);
            thread::yield_now();
            continue;
        };
        let used = |slot: &usize| leases.iter().flatten().any(|(_, of)| of == slot);
        let slot = (0..SLOTS).find(|slot| !used(slot)).expect("there are more slots than leases");
        // SAFETY: no lease is on this slot, so no thread reads it until it is published.
        unsafe { *slots.0[slot].get() = [sequence.0; WORDS] };
        leases[entry] = Some((sequence, slot));
        producer.publish(
            EntryIndex(entry),
            &Descriptor {
                sequence,
                slot: SlotId { generation: 0, index: slot as u32 },
                ..Default::default()
            },
        );
        // A publication takes far longer than the copy of a descriptor, on which the reader relies.
        (0..200).for_each(|_| hint::spin_loop());
    }
}

/// Ends the writer, also if the reader panics.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn queue_alone_orders_frames() {
    let (queue, claims) = (Memory::new(queue_size(ENTRIES)), Memory::new(claims_size(ENTRIES)));
    let producer = Producer::new(queue.clone(), claims.clone(), ENTRIES, Sequence(1));
    let consumer = Consumer::new(queue, claims, ENTRIES).expect("the page is ready");
    let slots = Slots(std::array::from_fn(|_| UnsafeCell::new([0; WORDS])));
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = End(&is_over);
        scope.spawn(|| write(&producer, &slots, &is_over));
        read(&consumer, &slots, 2_000);
    });
}
