// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of the queue: alone under std, in every interleaving under loom (`RUSTFLAGS="--cfg loom"
//! cargo test -p frameshare-queue --lib --release`).

use super::*;
use frameshare_protocol::{
    Ages, CopyCount, Descriptor, EntryIndex, ReaderCopy, Sequence, SlotId,
    descriptor::Field,
    page::{Claim, ClaimState, claim_at, claims, claims_size, queue_size},
};

#[cfg(loom)]
use loom::{
    sync::{Arc, atomic::AtomicU64},
    thread,
};
use std::sync::atomic::Ordering;
#[cfg(not(loom))]
use std::sync::{Arc, atomic::AtomicU64};

const ENTRY: EntryIndex = EntryIndex(0);

#[cfg(not(loom))]
fn model(f: impl Fn()) {
    f();
}

/// Explores all interleavings with at most three preemptions.
#[cfg(loom)]
fn model(f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(f);
}

/// A page in ordinary memory, shared by reference count.
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

fn queue(entries: usize) -> (Producer<Memory>, Consumer<Memory>) {
    let (queue, claims) = (Memory::new(queue_size(entries)), Memory::new(claims_size(entries)));
    let producer = Producer::new(queue.clone(), claims.clone(), entries, Sequence(1));
    (producer, Consumer::new(queue, claims, entries).expect("the page is ready"))
}

/// A descriptor whose first words all derive from its sequence number; the others are zero.
fn descriptor(sequence: Sequence) -> Descriptor {
    Descriptor {
        sequence,
        messages: sequence.0 * 3,
        slot: SlotId { generation: 0, index: sequence.0 as u32 * 5 },
        pts: Some(0),
        dts: Some(0),
        duration: Some(0),
        media_offset: Some(0),
        media_offset_end: Some(0),
        ..Descriptor::default()
    }
}

fn take(consumer: &Consumer<Memory>) -> Option<Taken> {
    loop {
        let taken = consumer.oldest()?.expect("descriptors of this test are valid");
        if consumer.claim(taken.entry, taken.descriptor.sequence) {
            return Some(taken);
        }
    }
}

#[test]
fn publications_of_any_entries_are_read_in_order() {
    model(|| {
        let (producer, consumer) = queue(3);
        for (entry, sequence) in [(2, 1), (0, 2), (1, 3)] {
            producer.publish(EntryIndex(entry), &descriptor(Sequence(sequence)));
        }
        for (entry, sequence) in [(2, 1), (0, 2), (1, 3)] {
            assert_eq!(
                take(&consumer),
                Some(Taken { entry: EntryIndex(entry), descriptor: descriptor(Sequence(sequence)) })
            );
        }
        assert_eq!(take(&consumer), None);
    });
}

#[test]
fn revoked_frame_is_not_taken_and_taken_not_revoked() {
    model(|| {
        let (producer, consumer) = queue(1);
        producer.publish(ENTRY, &descriptor(Sequence(1)));
        assert_eq!(producer.revoke(ENTRY, Sequence(1)), Ok(Revocation::Revoked));
        assert_eq!(take(&consumer), None);
        producer.publish(ENTRY, &descriptor(Sequence(2)));
        assert!(take(&consumer).is_some());
        assert_eq!(producer.revoke(ENTRY, Sequence(2)), Ok(Revocation::TooLate(ClaimState::Taken)));
        consumer.release(ENTRY, Sequence(2));
        assert_eq!(producer.state(ENTRY, Sequence(2)), Ok(ClaimState::Released));
    });
}

#[test]
fn claim_of_other_sequence_number_fails() {
    model(|| {
        let (producer, consumer) = queue(1);
        producer.publish(ENTRY, &descriptor(Sequence(1)));
        let stale = consumer.oldest().unwrap().unwrap();
        producer.revoke(ENTRY, Sequence(1)).unwrap();
        producer.publish(ENTRY, &descriptor(Sequence(2)));
        // The entry is published again, so a claim that checked only the state would succeed here.
        assert!(!consumer.claim(stale.entry, stale.descriptor.sequence));
        assert_eq!(take(&consumer).unwrap().descriptor, descriptor(Sequence(2)));
    });
}

#[test]
fn invalid_claim_words_are_violations() {
    model(|| {
        let (producer, consumer) = queue(1);
        producer.publish(ENTRY, &descriptor(Sequence(1)));
        consumer.release(ENTRY, Sequence(9));
        assert!(producer.state(ENTRY, Sequence(1)).is_err());
        assert!(producer.revoke(ENTRY, Sequence(1)).is_err());
    });
}

#[test]
fn publication_above_the_head_is_not_taken() {
    model(|| {
        let (queue, claims) = (Memory::new(queue_size(1)), Memory::new(claims_size(1)));
        let producer = Producer::new(queue.clone(), claims.clone(), 1, Sequence(1));
        let consumer = Consumer::new(queue, claims.clone(), 1).expect("the page is ready");
        let published = Claim { sequence: Sequence(1), state: ClaimState::Published };
        claims.words()[claim_at(ENTRY)].store(published.encode(), Ordering::Relaxed);
        assert_eq!(take(&consumer), None);
        assert_eq!(consumer.head(), Sequence(1));
        producer.skip(Sequence(1));
        assert_eq!(consumer.head(), Sequence(2));
        // The claim counts now, and its descriptor is of another frame.
        assert_eq!(consumer.oldest().unwrap().unwrap_err().field, Field::Sequence);
    });
}

#[test]
fn untaken_frames_before_a_frame_are_found() {
    model(|| {
        let (producer, consumer) = queue(2);
        let found =
            |consumer: &Consumer<Memory>| [2, 3, 4].map(|before| consumer.has_published(Sequence(before)));
        assert_eq!(found(&consumer), [false, false, false]);
        producer.publish(ENTRY, &descriptor(Sequence(2)));
        producer.publish(EntryIndex(1), &descriptor(Sequence(3)));
        assert_eq!(found(&consumer), [false, true, true]);
        assert!(consumer.claim(ENTRY, Sequence(2)));
        assert_eq!(found(&consumer), [false, false, true]);
    });
}

#[test]
fn sleeping_flag_is_taken_once() {
    model(|| {
        let (queue, claims) = (Memory::new(queue_size(1)), Memory::new(claims_size(1)));
        let producer = Producer::new(queue.clone(), claims.clone(), 1, Sequence(1));
        let consumer = Consumer::new(queue, claims.clone(), 1).expect("the page is ready");
        let sleeps = || [consumer.is_asleep(), producer.reader_sleeps()];
        assert_eq!((sleeps(), producer.take_sleeper()), ([false, false], None));
        for sleeper in [Sleeper::Socket, Sleeper::Futex] {
            consumer.announce_sleep(sleeper);
            assert_eq!((sleeps(), producer.take_sleeper()), ([true, true], Some(sleeper)));
            assert_eq!((sleeps(), producer.take_sleeper()), ([false, false], None));
            consumer.announce_sleep(sleeper);
            consumer.end_sleep();
            assert_eq!(sleeps(), [false, false]);
        }
        // Another number is no violation: a wake-up over the socket harms no other reader.
        claims.words()[claims::SLEEPING].store(9, Ordering::Relaxed);
        assert_eq!(producer.take_sleeper(), Some(Sleeper::Socket));
        producer.note_sent(5);
        assert_eq!(consumer.packets_sent(), 5);
    });
}

#[test]
fn exporter_is_woken_once_for_each_wait() {
    model(|| {
        let (producer, consumer) = queue(1);
        let release = || consumer.release(ENTRY, Sequence(1));
        assert!(!release(), "the exporter does not wait");
        producer.announce_wait();
        assert_eq!([release(), release()], [true, false]);
        producer.announce_wait();
        assert_eq!([release(), release()], [true, false], "each wait needs a wake-up of its own");
        producer.announce_wait();
        producer.end_wait();
        assert!(!release(), "the wait is over");
    });
}

#[test]
fn reader_counts_ages_and_copies() {
    model(|| {
        let (producer, consumer) = queue(1);
        let ages = [0, 3_000_000, 3_000_000, u64::MAX / 2];
        ages.iter().for_each(|age| consumer.count_age(*age));
        for reason in [ReaderCopy::Downstream, ReaderCopy::Layout, ReaderCopy::Downstream] {
            consumer.count_copy(reason);
        }
        let (counted, copies) = producer.counters();
        assert_eq!((counted.count(), counted.sum), (4, 6_000_000 + u64::MAX / 2));
        for age in ages {
            assert_eq!(counted.counts[Ages::range(age)], if age == ages[1] { 2 } else { 1 });
        }
        let copy = |reason: ReaderCopy, count| CopyCount { reason: reason.name().into(), count };
        assert_eq!(copies, [copy(ReaderCopy::Layout, 1), copy(ReaderCopy::Downstream, 2)]);
    });
}

/// A page whose first claim changes with each of the next loads.
#[cfg(not(loom))]
struct Flickering {
    memory: Memory,
    changes: std::cell::Cell<u32>,
}

#[cfg(not(loom))]
impl Page for Flickering {
    type Word = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        if let Some(left) = self.changes.get().checked_sub(1) {
            self.changes.set(left);
            let word = &self.memory.words()[claim_at(ENTRY)];
            let sequence = Claim::decode(word.load(Ordering::Relaxed)).sequence.next();
            let claim = Claim { sequence, state: ClaimState::Published };
            word.store(claim.encode(), Ordering::Relaxed);
        }
        self.memory.words()
    }
}

/// While a descriptor is copied, its claim is loaded before and after.
#[cfg(not(loom))]
#[test]
fn oldest_fails_on_unstable_claim_word() {
    for (torn, field) in [(1, Field::Sequence), (1000, Field::Sequence), (1001, Field::Claim)] {
        let (queue, claims) = (Memory::new(queue_size(1)), Memory::new(claims_size(1)));
        Producer::new(queue.clone(), claims.clone(), 1, Sequence(u64::MAX));
        let page = |memory, changes: u32| Flickering { memory, changes: changes.into() };
        let consumer = Consumer::new(page(queue, 0), page(claims, 2 * torn), 1).expect("the page is ready");
        // The page has no descriptor that belongs to its claim.
        let found = consumer.oldest().expect("something is published").unwrap_err();
        assert_eq!(found.field, field, "{torn} torn copies: {found}");
    }
}

/// A page that records the announcements of accesses to its words.
#[cfg(not(loom))]
struct Recording {
    memory: Memory,
    announced: std::cell::RefCell<Vec<Announced>>,
}

#[cfg(not(loom))]
#[derive(Debug, PartialEq, Eq)]
enum Announced {
    /// The word, and its value before the store.
    Store(usize, Claim),
    Load(usize),
}

#[cfg(not(loom))]
impl Recording {
    fn at(&self, word: &AtomicU64) -> usize {
        self.words().iter().position(|other| std::ptr::eq(other, word)).expect("the word is of this page")
    }
}

#[cfg(not(loom))]
impl Page for Recording {
    type Word = AtomicU64;

    fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    fn before_store(&self, word: &AtomicU64) {
        let before = Claim::decode(word.load(Ordering::Relaxed));
        self.announced.borrow_mut().push(Announced::Store(self.at(word), before));
    }

    fn after_load(&self, word: &AtomicU64) {
        self.announced.borrow_mut().push(Announced::Load(self.at(word)));
    }
}

/// The other side learns of accesses to a frame by a change of a word: the change is announced
/// before, and its observation after.
#[cfg(not(loom))]
#[test]
fn changes_that_order_accesses_to_frames_are_announced() {
    let page = |bytes| Recording { memory: Memory::new(bytes), announced: Default::default() };
    let (queue, claims) = (page(queue_size(1)), page(claims_size(1)));
    let producer = Producer::new(&queue, &claims, 1, Sequence(1));
    let consumer = Consumer::new(&queue, &claims, 1).expect("the page is ready");
    let announced = || claims.announced.take();
    let claim = |state| Claim { sequence: Sequence(1), state };
    let at = claim_at(ENTRY);

    producer.publish(ENTRY, &descriptor(Sequence(1)));
    assert_eq!(announced(), [Announced::Store(at, Claim::decode(0))]);
    assert!(!consumer.claim(ENTRY, Sequence(2)));
    assert_eq!((consumer.claim(ENTRY, Sequence(1)), announced()), (true, vec![Announced::Load(at)]));
    assert_eq!((producer.state(ENTRY, Sequence(1)), announced()), (Ok(ClaimState::Taken), vec![]));
    consumer.release(ENTRY, Sequence(1));
    assert_eq!(announced(), [Announced::Store(at, claim(ClaimState::Taken))]);
    assert_eq!(producer.state(ENTRY, Sequence(1)), Ok(ClaimState::Released));
    assert_eq!(announced(), [Announced::Load(at)]);
    drop(consumer.last_access());
    producer.note_last_access();
    let at = claims::SLEEPING;
    assert_eq!(announced(), [Announced::Store(at, Claim::decode(0)), Announced::Load(at)]);
    assert!(queue.announced.take().is_empty());
}

#[cfg(loom)]
mod interleavings {
    use super::*;
    use frameshare_protocol::page;
    use loom::sync::atomic::fence;

    /// An exporter that overwrites untaken frames, against a reader that takes: every taken frame
    /// is whole, in order, and leased to the reader only.
    fn overwrite_against_take(claim: fn(&Consumer<Memory>, &Memory, &Taken) -> bool) {
        let (pages_queue, pages_claims) = (Memory::new(queue_size(1)), Memory::new(claims_size(1)));
        let producer = Producer::new(pages_queue.clone(), pages_claims.clone(), 1, Sequence(1));
        let consumer = Consumer::new(pages_queue, pages_claims.clone(), 1).unwrap();
        producer.publish(ENTRY, &descriptor(Sequence(1)));
        let reader = thread::spawn(move || {
            let mut seen = Sequence(0);
            for _ in 0..2 {
                let Some(found) = consumer.oldest() else { continue };
                let found = found.expect("an exporter that keeps the rules is believed");
                if claim(&consumer, &pages_claims, &found) {
                    let sequence = found.descriptor.sequence;
                    assert_eq!(found.descriptor, descriptor(sequence), "a torn descriptor");
                    let now = Claim::decode(
                        pages_claims.words()[page::claim_at(found.entry)].load(Ordering::Relaxed),
                    );
                    assert_eq!(now.sequence, sequence, "a recycled entry was taken");
                    assert!(sequence > seen, "out of order");
                    seen = sequence;
                    consumer.release(found.entry, sequence);
                }
            }
        });
        if producer.revoke(ENTRY, Sequence(1)).expect("the reader keeps the rules") == Revocation::Revoked {
            producer.publish(ENTRY, &descriptor(Sequence(2)));
        }
        reader.join().unwrap();
    }

    #[test]
    fn reader_never_takes_overwritten_entry() {
        model(|| {
            overwrite_against_take(|consumer, _, found| {
                consumer.claim(found.entry, found.descriptor.sequence)
            })
        });
    }

    /// Negative control: the claim checks the state and not the sequence number.
    #[test]
    #[should_panic(expected = "a recycled entry was taken")]
    fn claim_without_sequence_number_takes_reused_entry() {
        model(|| {
            overwrite_against_take(|_, claims, found| {
                let word = &claims.words()[page::claim_at(found.entry)];
                let now = Claim::decode(word.load(Ordering::Relaxed));
                let taken = Claim { state: ClaimState::Taken, ..now };
                now.state == ClaimState::Published
                    && word
                        .compare_exchange(now.encode(), taken.encode(), Ordering::AcqRel, Ordering::Relaxed)
                        .is_ok()
            })
        });
    }

    /// A reader that takes below the head it read never takes a younger frame before an older one.
    #[test]
    fn oldest_frame_comes_first_during_publication() {
        model(|| {
            let (producer, consumer) = queue(2);
            let exporter = thread::spawn(move || {
                producer.publish(EntryIndex(1), &descriptor(Sequence(1)));
                producer.publish(ENTRY, &descriptor(Sequence(2)));
            });
            let first = take(&consumer).map(|taken| taken.descriptor);
            assert!(first.is_none() || first == Some(descriptor(Sequence(1))), "{first:?}");
            exporter.join().unwrap();
        });
    }

    /// A reader that falls asleep against a publication in its queue, by `publish`: a sleeping
    /// reader always gets a wake-up.
    fn sleep_against(
        announce: fn(&Consumer<Memory>, &Memory),
        publish: impl FnOnce(&Producer<Memory>) -> bool + Send + 'static,
    ) {
        let (pages_queue, pages_claims) = (Memory::new(queue_size(1)), Memory::new(claims_size(1)));
        let producer = Producer::new(pages_queue.clone(), pages_claims.clone(), 1, Sequence(1));
        let consumer = Consumer::new(pages_queue, pages_claims.clone(), 1).unwrap();
        let exporter = thread::spawn(move || publish(&producer));
        announce(&consumer, &pages_claims);
        let sleeps = consumer.oldest().is_none();
        let woken = exporter.join().unwrap();
        assert!(!sleeps || woken, "a sleeping side without a wake-up");
    }

    fn sleep_against_publish(announce: fn(&Consumer<Memory>, &Memory)) {
        sleep_against(announce, |producer| {
            producer.publish(ENTRY, &descriptor(Sequence(1)));
            producer.reader_sleeps()
        });
    }

    #[test]
    fn sleeping_reader_is_woken() {
        model(|| sleep_against_publish(|consumer, _| consumer.announce_sleep(Sleeper::Socket)));
    }

    /// The flag is taken without a check before, as for a close message.
    #[test]
    fn sleeping_reader_is_woken_without_a_check_before() {
        model(|| {
            let announce = |consumer: &Consumer<Memory>, _: &Memory| consumer.announce_sleep(Sleeper::Socket);
            sleep_against(announce, |producer| {
                producer.publish(ENTRY, &descriptor(Sequence(1)));
                producer.take_sleeper().is_some()
            });
        });
    }

    /// Publishes into two queues, of which the first one has no reader, with `order` before the
    /// flags of both.
    fn sleep_against_publish_for_two(order: fn() -> Ordered) {
        let announce = |consumer: &Consumer<Memory>, _: &Memory| consumer.announce_sleep(Sleeper::Socket);
        sleep_against(announce, move |producer| {
            let (first, _) = queue(1);
            for producer in [&first, producer] {
                producer.publish(ENTRY, &descriptor(Sequence(1)));
            }
            let ordered = order();
            !first.flags_sleep(ordered) && producer.flags_sleep(ordered)
        });
    }

    #[test]
    fn one_fence_orders_publications_for_several_readers() {
        model(|| sleep_against_publish_for_two(Producer::<Memory>::order_before_flags));
    }

    /// Negative control: flags are checked without the fence.
    #[test]
    #[should_panic(expected = "a sleeping side without a wake-up")]
    fn flags_checked_without_the_fence_lose_a_sleeper() {
        model(|| sleep_against_publish_for_two(|| Ordered(())));
    }

    /// Negative control: the flag without its fence.
    #[test]
    #[should_panic(expected = "a sleeping side without a wake-up")]
    fn sleeping_reader_without_fence_is_not_woken() {
        model(|| {
            sleep_against_publish(|_, claims| {
                claims.words()[page::claims::SLEEPING].store(1, Ordering::Relaxed)
            })
        });
    }

    /// A reader that falls asleep on a futex against a publication and the wake-up that follows.
    /// `fall_asleep` returns the value of the word that the reader sleeps with, if it sleeps.
    fn futex_sleep_against_publish(fall_asleep: fn(&Consumer<Memory>, &AtomicU64) -> Option<u64>) {
        let (producer, consumer) = queue(1);
        let word = Arc::new(AtomicU64::new(0));
        let group = word.clone();
        let exporter = thread::spawn(move || {
            producer.publish(ENTRY, &descriptor(Sequence(1)));
            if producer.reader_sleeps() && producer.take_sleeper() == Some(Sleeper::Futex) {
                // After this the kernel wakes sleepers with the former value.
                group.fetch_add(1, Ordering::AcqRel);
            }
        });
        let value = fall_asleep(&consumer, &word);
        exporter.join().unwrap();
        assert_ne!(value, Some(word.load(Ordering::Relaxed)), "a futex sleeper without a wake-up");
    }

    #[test]
    fn futex_sleeper_is_woken() {
        model(|| {
            futex_sleep_against_publish(|consumer, word| {
                let value = word.load(Ordering::Acquire);
                consumer.announce_sleep(Sleeper::Futex);
                consumer.oldest().is_none().then_some(value)
            })
        });
    }

    /// Negative control: the word is loaded after the last check.
    #[test]
    #[should_panic(expected = "a futex sleeper without a wake-up")]
    fn futex_sleeper_that_loads_late_is_not_woken() {
        model(|| {
            futex_sleep_against_publish(|consumer, word| {
                consumer.announce_sleep(Sleeper::Futex);
                consumer.oldest().is_none().then(|| word.load(Ordering::Acquire))
            })
        });
    }

    /// A message that is sent while a reader falls asleep: the reader sees the number of packets,
    /// or gets a wake-up.
    fn sleep_against_send(send: fn(&Producer<Memory>) -> bool) {
        let (producer, consumer) = queue(1);
        let exporter = thread::spawn(move || send(&producer));
        consumer.announce_sleep(Sleeper::Futex);
        let sleeps = consumer.packets_sent() == 0;
        let woken = exporter.join().unwrap();
        assert!(!sleeps || woken, "a sleeping reader without its message");
    }

    #[test]
    fn sleeping_reader_sees_messages() {
        model(|| {
            sleep_against_send(|producer| {
                producer.note_sent(1);
                producer.reader_sleeps()
            })
        });
    }

    /// Negative control: the flag is checked before the number is stored.
    #[test]
    #[should_panic(expected = "a sleeping reader without its message")]
    fn flag_checked_before_the_number_loses_messages() {
        model(|| {
            sleep_against_send(|producer| {
                let sleeps = producer.reader_sleeps();
                producer.note_sent(1);
                sleeps
            })
        });
    }

    /// An exporter that falls asleep against a release.
    fn wait_against_release(announce: fn(&Producer<Memory>, &Memory)) {
        let (pages_queue, pages_claims) = (Memory::new(queue_size(1)), Memory::new(claims_size(1)));
        let producer = Producer::new(pages_queue.clone(), pages_claims.clone(), 1, Sequence(1));
        let consumer = Consumer::new(pages_queue.clone(), pages_claims, 1).unwrap();
        producer.publish(ENTRY, &descriptor(Sequence(1)));
        let found = take(&consumer).unwrap();
        let reader = thread::spawn(move || consumer.release(found.entry, Sequence(1)));
        announce(&producer, &pages_queue);
        let sleeps = producer.state(ENTRY, Sequence(1)).unwrap() != ClaimState::Released;
        let woken = reader.join().unwrap();
        assert!(!sleeps || woken, "a sleeping side without a wake-up");
    }

    #[test]
    fn waiting_exporter_is_woken() {
        model(|| wait_against_release(|producer, _| producer.announce_wait()));
    }

    /// Negative control: the flag without its fence.
    #[test]
    #[should_panic(expected = "a sleeping side without a wake-up")]
    fn waiting_exporter_without_fence_is_not_woken() {
        model(|| {
            wait_against_release(|_, queue| queue.words()[page::queue::WAITING].store(1, Ordering::Relaxed))
        });
    }

    /// The reader's accesses to a frame precede the exporter's observation of its release.
    #[test]
    fn release_follows_reading() {
        model(|| {
            let (producer, consumer) = queue(1);
            let frame = Arc::new(AtomicU64::new(1));
            producer.publish(ENTRY, &descriptor(Sequence(1)));
            let found = take(&consumer).unwrap();
            let content = frame.clone();
            let reader = thread::spawn(move || {
                assert_eq!(content.load(Ordering::Relaxed), 1, "the frame was written while it was leased");
                consumer.release(found.entry, Sequence(1));
            });
            if producer.state(ENTRY, Sequence(1)).unwrap() == ClaimState::Released {
                frame.store(2, Ordering::Relaxed);
            }
            reader.join().unwrap();
            fence(Ordering::SeqCst);
        });
    }
}
