// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reader's half of a queue.

use crate::{COPIED, Page, Sleeper, Word};
use frameshare_protocol::{
    Ages, Descriptor, EntryIndex, ReaderCopy, Sequence, descriptor,
    descriptor::{Field, InvalidDescriptor},
    page::{Claim, ClaimState, MAGIC, claim_at, claims, counters, counters_at, descriptor_at, queue},
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of consecutive revocations of an entry while its descriptor is copied, which
/// takes far less time than a publication.
const MAX_TORN: u32 = 1000;

/// Takes from a queue and releases. One thread at a time takes; any thread releases.
#[derive(Debug)]
pub struct Consumer<P> {
    queue: P,
    claims: P,
    entries: usize,
    /// The exporter's last wait that got a wake-up.
    woken: AtomicU64,
}

/// Announces, when it is dropped, that the reader accesses no frame any more. The exporter learns
/// of it from the socket, which is closed afterwards.
#[derive(Debug)]
pub struct LastAccess<P: Page>(P);

impl<P: Page> Drop for LastAccess<P> {
    fn drop(&mut self) {
        self.0.before_store(&self.0.words()[claims::SLEEPING]);
    }
}

/// A publication that the reader has taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// The entry that carries the lease.
    pub entry: EntryIndex,
    /// The description of the frame.
    pub descriptor: Descriptor,
}

impl<P: Page> Consumer<P> {
    /// Joins a queue of `entries` entries; `None` if the page is not one of this version.
    pub fn new(queue: P, claims: P, entries: usize) -> Option<Self> {
        (queue.words()[queue::MAGIC].load(Ordering::Acquire) == MAGIC).then(|| Self {
            queue,
            claims,
            entries,
            woken: AtomicU64::new(0),
        })
    }

    /// The announcement of the reader's end.
    pub fn last_access(&self) -> LastAccess<P>
    where
        P: Clone,
    {
        LastAccess(self.claims.clone())
    }

    /// Returns the oldest untaken publication: its entry, and its descriptor as of now.
    ///
    /// The exporter may revoke it at any time; it is the reader's only after [`Consumer::claim`].
    ///
    /// # Errors
    /// [`InvalidDescriptor`] for one that an honest exporter would not have written.
    pub fn oldest(&self) -> Option<Result<Taken, InvalidDescriptor>> {
        let mut torn = 0;
        loop {
            // SYNC(publish): everything below the head is complete.
            let head = self.head();
            let (entry, sequence) = self
                .entries()
                .filter_map(|entry| {
                    let claim = Claim::decode(self.claims.words()[claim_at(entry)].load(Ordering::Acquire));
                    let open = claim.state == ClaimState::Published && claim.sequence < head;
                    open.then_some((entry, claim.sequence))
                })
                .min_by_key(|(_, sequence)| *sequence)?;
            let at = descriptor_at(entry);
            let mut words = [0; descriptor::WORDS];
            for (value, word) in words.iter_mut().zip(&self.queue.words()[at..at + COPIED]) {
                *value = word.load(Ordering::Relaxed);
            }
            // The copy is of `sequence` only if the entry was not revoked meanwhile: then its claim
            // is unchanged.
            P::Word::fence(Ordering::Acquire);
            let claim = Claim::decode(self.claims.words()[claim_at(entry)].load(Ordering::Relaxed));
            if claim == (Claim { sequence, state: ClaimState::Published }) {
                return Some(Descriptor::decode(&words).and_then(|descriptor| {
                    let honest = descriptor.sequence == sequence;
                    let wrong = InvalidDescriptor { sequence, field: Field::Sequence };
                    if honest { Ok(Taken { entry, descriptor }) } else { Err(wrong) }
                }));
            }
            // Another process than the queue's exporter writes here, possibly without end.
            torn += 1;
            if torn > MAX_TORN {
                return Some(Err(InvalidDescriptor { sequence, field: Field::Claim }));
            }
        }
    }

    fn entries(&self) -> impl Iterator<Item = EntryIndex> + use<P> {
        (0..self.entries).map(EntryIndex)
    }

    /// Returns whether a publication before `before`, made before this call, waits to be taken.
    pub fn has_published(&self, before: Sequence) -> bool {
        self.entries().any(|entry| {
            let claim = Claim::decode(self.claims.words()[claim_at(entry)].load(Ordering::Acquire));
            claim.state == ClaimState::Published && claim.sequence < before
        })
    }

    /// Claims a publication; false if the exporter revoked it, even if it has reused the entry
    /// since.
    #[must_use = "a publication that was not claimed is not the reader's"]
    pub fn claim(&self, entry: EntryIndex, sequence: Sequence) -> bool {
        let published = Claim { sequence, state: ClaimState::Published };
        let taken = Claim { sequence, state: ClaimState::Taken };
        // SYNC(claim): release, so that the copy of the descriptor stays before it; acquire, so
        // that reading the frame stays behind it.
        let word = &self.claims.words()[claim_at(entry)];
        let is_taken = word
            .compare_exchange(published.encode(), taken.encode(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if is_taken {
            self.claims.after_load(word);
        }
        is_taken
    }

    /// Ends the lease on a claimed publication. Returns true if the exporter sleeps and needs a
    /// wake-up.
    pub fn release(&self, entry: EntryIndex, sequence: Sequence) -> bool {
        let released = Claim { sequence, state: ClaimState::Released };
        // SYNC(release): all accesses to the frame come before.
        let word = &self.claims.words()[claim_at(entry)];
        self.claims.before_store(word);
        word.store(released.encode(), Ordering::Release);
        // SYNC(wait): against the exporter's waiting flag.
        P::Word::fence(Ordering::SeqCst);
        let waiting = self.queue.words()[queue::WAITING].load(Ordering::Relaxed);
        // One wake-up a wait is enough; each wait has a number of its own.
        waiting != 0 && self.woken.swap(waiting, Ordering::Relaxed) != waiting
    }

    /// Counts a frame of an age in ns. Only the thread that takes frames counts ages, so a load and
    /// a store of each word are enough.
    pub fn count_age(&self, age: u64) {
        let words = self.counters();
        let add = |at: usize, value: u64| {
            words[at].store(words[at].load(Ordering::Relaxed).wrapping_add(value), Ordering::Relaxed);
        };
        add(counters::AGES + Ages::range(age), 1);
        add(counters::AGE_SUM, age);
    }

    /// Counts a copy of a frame. Any thread counts copies.
    pub fn count_copy(&self, reason: ReaderCopy) {
        self.counters()[counters::COPIES + reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn counters(&self) -> &[P::Word] {
        &self.claims.words()[counters_at(self.entries)..][..counters::WORDS]
    }

    /// Sets the sleeping flag. Check once more after it. For a sleep on a futex, load its word
    /// before that check.
    pub fn announce_sleep(&self, sleeper: Sleeper) {
        let how = match sleeper {
            Sleeper::Socket => claims::BY_SOCKET,
            Sleeper::Futex => claims::BY_FUTEX,
        };
        self.claims.words()[claims::SLEEPING].store(how, Ordering::Relaxed);
        // SYNC(sleep): against the exporter's publication.
        P::Word::fence(Ordering::SeqCst);
    }

    /// Returns whether the sleeping flag is set: neither this side nor a wake-up has cleared it.
    pub fn is_asleep(&self) -> bool {
        self.claims.words()[claims::SLEEPING].load(Ordering::Relaxed) != 0
    }

    /// Number of packets that the exporter has sent over the control socket, by its account.
    pub fn packets_sent(&self) -> u64 {
        self.queue.words()[queue::SENT].load(Ordering::Acquire)
    }

    /// Clears the sleeping flag.
    pub fn end_sleep(&self) {
        self.claims.words()[claims::SLEEPING].store(0, Ordering::Relaxed);
    }

    /// The sequence number after the newest publication.
    pub fn head(&self) -> Sequence {
        Sequence(self.queue.words()[queue::HEAD].load(Ordering::Acquire))
    }
}
