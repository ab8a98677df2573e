//! The reader's half of a queue.

use super::COPIED;
use crate::atomic::{AtomicU64, Ordering, fence};
use frameshare_protocol::{
    Descriptor, descriptor,
    descriptor::InvalidDescriptor,
    page::{Claim, ClaimState, MAGIC, claim_at, claims, descriptor_at, queue},
};
use std::ops::Deref;

/// How many times in a row an entry may be taken back while its descriptor is copied, which takes far less time than to
/// publish one.
const MAX_TORN: u32 = 1000;

/// Takes from a queue and gives back. One thread at a time takes; any thread releases.
#[derive(Debug)]
pub struct Consumer<P> {
    queue: P,
    claims: P,
    entries: usize,
    /// The wait that the exporter was woken from last.
    rung: AtomicU64,
}

/// A publication that the reader has taken.
#[derive(Debug, PartialEq, Eq)]
pub struct Taken {
    /// The entry that carries the lease.
    pub entry: usize,
    /// What was published.
    pub descriptor: Descriptor,
}

impl<P: Deref<Target = [AtomicU64]>> Consumer<P> {
    /// Joins a queue of `entries` entries; `None` if the page is not one of this version.
    pub fn new(queue: P, claims: P, entries: usize) -> Option<Self> {
        (queue[queue::MAGIC].load(Ordering::Acquire) == MAGIC).then(|| Self {
            queue,
            claims,
            entries,
            rung: AtomicU64::new(0),
        })
    }

    /// The oldest publication that nobody has taken: its entry, and its descriptor as it reads now.
    ///
    /// The exporter may revoke it at any time; it is the reader's only after [`Consumer::claim`].
    pub fn oldest(&self) -> Option<Result<Taken, InvalidDescriptor>> {
        let mut torn = 0;
        loop {
            // SYNC(publish): everything below the head is complete.
            let head = self.queue[queue::HEAD].load(Ordering::Acquire);
            let (entry, sequence) = (0..self.entries)
                .filter_map(|entry| {
                    let claim = Claim::decode(self.claims[claim_at(entry)].load(Ordering::Acquire));
                    let open = claim.state == ClaimState::Published && claim.sequence < head;
                    open.then_some((entry, claim.sequence))
                })
                .min_by_key(|(_, sequence)| *sequence)?;
            let at = descriptor_at(entry);
            let mut words = [0; descriptor::WORDS];
            for (value, word) in words.iter_mut().zip(&self.queue[at..at + COPIED]) {
                *value = word.load(Ordering::Relaxed);
            }
            // The copy is of `sequence` only if the entry was not revoked meanwhile: then its claim is unchanged.
            fence(Ordering::Acquire);
            let claim = Claim::decode(self.claims[claim_at(entry)].load(Ordering::Relaxed));
            if claim == (Claim { sequence, state: ClaimState::Published }) {
                return Some(Descriptor::decode(&words).and_then(|descriptor| {
                    let honest = descriptor.sequence == sequence;
                    let wrong = InvalidDescriptor { sequence, field: "sequence number" };
                    if honest { Ok(Taken { entry, descriptor }) } else { Err(wrong) }
                }));
            }
            // Somebody else than a queue's exporter writes here, and might do so for ever.
            torn += 1;
            if torn > MAX_TORN {
                return Some(Err(InvalidDescriptor { sequence, field: "claim, which never stays the same" }));
            }
        }
    }

    /// Whether a publication before `before` waits to be taken, of those that the exporter made before this call.
    pub fn has_published(&self, before: u64) -> bool {
        (0..self.entries).any(|entry| {
            let claim = Claim::decode(self.claims[claim_at(entry)].load(Ordering::Acquire));
            claim.state == ClaimState::Published && claim.sequence < before
        })
    }

    /// Claims a publication; false if the exporter revoked it, even if it has used the entry again since.
    pub fn claim(&self, entry: usize, sequence: u64) -> bool {
        let published = Claim { sequence, state: ClaimState::Published };
        let taken = Claim { sequence, state: ClaimState::Taken };
        // SYNC(claim): release, so that the copy of the descriptor stays before it; acquire, so that reading
        // the frame stays behind it.
        self.claims[claim_at(entry)]
            .compare_exchange(published.encode(), taken.encode(), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    /// Ends the lease on a publication that was claimed. True if the exporter sleeps and must be woken.
    pub fn release(&self, entry: usize, sequence: u64) -> bool {
        let released = Claim { sequence, state: ClaimState::Released };
        // SYNC(release): all that was done with the frame comes before.
        self.claims[claim_at(entry)].store(released.encode(), Ordering::Release);
        // SYNC(wait): against the exporter's announcement.
        fence(Ordering::SeqCst);
        let waiting = self.queue[queue::WAITING].load(Ordering::Relaxed);
        // One wake-up a wait is enough; each has a number of its own.
        waiting != 0 && self.rung.swap(waiting, Ordering::Relaxed) != waiting
    }

    /// Announces that the reader is going to sleep until something is published. Look once more after it.
    pub fn announce_sleep(&self) {
        self.claims[claims::SLEEPING].store(1, Ordering::Relaxed);
        // SYNC(sleep): against the exporter's publication.
        fence(Ordering::SeqCst);
    }

    /// Takes the announcement back.
    pub fn end_sleep(&self) {
        self.claims[claims::SLEEPING].store(0, Ordering::Relaxed);
    }

    /// The sequence number after the newest publication.
    pub fn head(&self) -> u64 {
        self.queue[queue::HEAD].load(Ordering::Acquire)
    }
}
