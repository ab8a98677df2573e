// SPDX-License-Identifier: MIT OR Apache-2.0

//! The exporter's half of a queue.

use crate::{COPIED, Page, Sleeper, Word};
use frameshare_protocol::{
    Ages, CopyCount, Descriptor, EntryIndex, ReaderCopy, Sequence,
    page::{Claim, ClaimState, MAGIC, claim_at, claims, counters, counters_at, descriptor_at, queue},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Publishes into a queue, and reads the state of its publications. Used by one thread at a time.
#[derive(Debug)]
pub struct Producer<P> {
    queue: P,
    claims: P,
    entries: usize,
    /// Number of waits so far.
    waits: AtomicU64,
}

/// A claim word that no correct reader could have written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the claim of entry {entry} reads {found:?} while it carries frame {sequence}")]
pub struct Violation {
    /// The entry.
    pub entry: EntryIndex,
    /// The publication that it carries.
    pub sequence: Sequence,
    /// The claim word found.
    pub found: Claim,
}

/// The outcome of [`Producer::revoke`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Revocation {
    /// The reader had not taken it, and no longer can.
    Revoked,
    /// The reader had taken it; the state is `Taken` or `Released`.
    TooLate(ClaimState),
}

/// Changes to queues come before the checks of sleeping flags.
#[derive(Clone, Copy, Debug)]
pub struct Ordered(pub(super) ());

impl<P: Page> Producer<P> {
    /// Makes a queue of `entries` entries in two fresh pages (all zero, long enough for that many
    /// entries), whose first publication will have the sequence number `next`.
    pub fn new(queue: P, claims: P, entries: usize, next: Sequence) -> Self {
        queue.words()[queue::HEAD].store(next.0, Ordering::Relaxed);
        queue.words()[queue::MAGIC].store(MAGIC, Ordering::Release);
        Self { queue, claims, entries, waits: AtomicU64::new(0) }
    }

    /// Publishes into an entry without a lease. [`Producer::reader_sleeps`] follows, or after
    /// publications into several queues [`Producer::order_before_flags`] and
    /// [`Producer::flags_sleep`].
    pub fn publish(&self, entry: EntryIndex, descriptor: &Descriptor) {
        debug_assert!(entry.0 < self.entries);
        let at = descriptor_at(entry);
        // SYNC(revoke): the revocation that made the entry free before the words that follow,
        // against the reader's second load of the claim.
        P::Word::fence(Ordering::Release);
        for (word, value) in self.queue.words()[at..at + COPIED].iter().zip(descriptor.encode()) {
            word.store(value, Ordering::Relaxed);
        }
        let claim = Claim { sequence: descriptor.sequence, state: ClaimState::Published };
        // SYNC(publish): the descriptor before the claim, the claim before the head.
        let word = &self.claims.words()[claim_at(entry)];
        self.claims.before_store(word);
        word.store(claim.encode(), Ordering::Release);
        self.queue.words()[queue::HEAD].store(descriptor.sequence.next().0, Ordering::Release);
    }

    /// Moves the head past a publication that this reader does not get.
    pub fn skip(&self, sequence: Sequence) {
        self.queue.words()[queue::HEAD].store(sequence.next().0, Ordering::Release);
    }

    /// Orders changes to any number of queues before the checks of their readers' sleeping flags.
    pub fn order_before_flags() -> Ordered {
        // SYNC(sleep): the change is stored before, and the reader's flag is read after.
        P::Word::fence(Ordering::SeqCst);
        Ordered(())
    }

    /// Returns whether the reader sleeps and needs a wake-up. Called after every change that it may
    /// wait for.
    pub fn reader_sleeps(&self) -> bool {
        self.flags_sleep(Self::order_before_flags())
    }

    /// Returns whether the reader's sleeping flag is set.
    pub fn flags_sleep(&self, _: Ordered) -> bool {
        self.claims.words()[claims::SLEEPING].load(Ordering::Relaxed) != 0
    }

    /// Takes the reader's sleeping flag: one wake-up is enough, and it goes to the returned object.
    /// `None` if the reader does not sleep.
    pub fn take_sleeper(&self) -> Option<Sleeper> {
        // For callers that have not called `reader_sleeps`.
        Self::order_before_flags();
        match self.claims.words()[claims::SLEEPING].swap(0, Ordering::Relaxed) {
            0 => None,
            claims::BY_FUTEX => Some(Sleeper::Futex),
            // Any other number: a reader can only harm itself.
            _ => Some(Sleeper::Socket),
        }
    }

    /// Announces that the exporter has learnt of the reader's end.
    pub fn note_last_access(&self) {
        self.claims.after_load(&self.claims.words()[claims::SLEEPING]);
    }

    /// Publishes the number of packets that were sent over the control socket.
    pub fn note_sent(&self, packets: u64) {
        self.queue.words()[queue::SENT].store(packets, Ordering::Release);
    }

    /// Returns the state of publication `sequence` in `entry`: published, taken or released.
    ///
    /// # Errors
    /// [`Violation`] if the reader wrote another word.
    pub fn state(&self, entry: EntryIndex, sequence: Sequence) -> Result<ClaimState, Violation> {
        // SYNC(release): all the reader's accesses to the frame come before what follows here.
        let word = &self.claims.words()[claim_at(entry)];
        let found = Claim::decode(word.load(Ordering::Acquire));
        if found.state == ClaimState::Released {
            self.claims.after_load(word);
        }
        if found.sequence == sequence && found.state != ClaimState::Revoked {
            Ok(found.state)
        } else {
            Err(Violation { entry, sequence, found })
        }
    }

    /// Revokes publication `sequence` unless the reader has taken it.
    ///
    /// # Errors
    /// As [`Producer::state`].
    pub fn revoke(&self, entry: EntryIndex, sequence: Sequence) -> Result<Revocation, Violation> {
        let published = Claim { sequence, state: ClaimState::Published };
        let revoked = Claim { sequence, state: ClaimState::Revoked };
        // SYNC(claim): against the reader's exchange on the same word; exactly one of the two
        // succeeds.
        let exchanged = self.claims.words()[claim_at(entry)].compare_exchange(
            published.encode(),
            revoked.encode(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        match exchanged {
            Ok(_) => Ok(Revocation::Revoked),
            Err(_) => self.state(entry, sequence).map(Revocation::TooLate),
        }
    }

    /// Returns the reader's counters, each as of now. It may write any numbers.
    pub fn counters(&self) -> (Ages, Vec<CopyCount>) {
        let words = &self.claims.words()[counters_at(self.entries)..][..counters::WORDS];
        let load = |at: usize| words[at].load(Ordering::Relaxed);
        let ages = Ages {
            counts: std::array::from_fn(|range| load(counters::AGES + range)),
            sum: load(counters::AGE_SUM),
        };
        let copies = ReaderCopy::ALL.iter().map(|reason| CopyCount {
            reason: reason.name().into(),
            count: load(counters::COPIES + *reason as usize),
        });
        (ages, copies.filter(|copies| copies.count > 0).collect())
    }

    /// Sets the waiting flag. Check for ended leases once more after it.
    pub fn announce_wait(&self) {
        let wait = self.waits.fetch_add(1, Ordering::Relaxed) + 1;
        self.queue.words()[queue::WAITING].store(wait, Ordering::Relaxed);
        // SYNC(wait): against the reader's release.
        P::Word::fence(Ordering::SeqCst);
    }

    /// Clears the waiting flag.
    pub fn end_wait(&self) {
        self.queue.words()[queue::WAITING].store(0, Ordering::Relaxed);
    }
}
