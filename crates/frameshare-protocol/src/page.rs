// SPDX-License-Identifier: MIT OR Apache-2.0

//! Layout of the pages shared by an exporter and one reader.
//!
//! A page is an array of 64-bit words in native byte order. All accesses to them are atomic.
//!
//! - The **queue page** is written by the exporter only (the reader's mapping is read-only, and the
//!   seals prevent a writable one): a header, then one [`descriptor`](mod@crate::descriptor) per
//!   entry.
//! - The **claims page** is written by both sides: whether the reader is asleep and how, then one
//!   [`Claim`] per entry, then the [`counters`] of the reader, in cache lines of their own.
//! - The **wake-up page** is written by the exporter only, like the queue page, and has 32-bit
//!   words: one futex for each stream of the exporter's process. Readers of one user share a page,
//!   readers of different users do not.
//! - The **timeline page**, used with timeline fences, is written by the GPU streams of both sides:
//!   one ready value, the sequence number of the newest frame written, and one release value per
//!   entry, the sequence number of the newest frame in it whose reading is complete. The exporter
//!   seals the size of the page. The reader adds all other seals once it has mapped the page: a GPU
//!   keeps the memory that was registered, even if the file changes.
//!
//! An entry holds one lease at a time. Entries are unordered; sequence numbers give the order.

use crate::{
    VERSION, descriptor,
    ids::{EntryIndex, Sequence},
    limits,
};

/// Word offsets in the header of the queue page.
pub mod queue {
    /// Magic number and version. Written last: a page without it is not initialized.
    pub const MAGIC: usize = 0;
    /// One more than the newest sequence number published in this queue.
    pub const HEAD: usize = 1;
    /// Number of packets that the exporter has sent over the control socket, the `Welcome`
    /// included.
    pub const SENT: usize = 2;
    /// Nonzero while the exporter is blocked until a lease ends; starts a cache line, which
    /// publications leave alone.
    pub const WAITING: usize = 8;
    /// Descriptor of the first entry; starts a cache line.
    pub const ENTRIES: usize = 16;
}

/// Word offsets in the header of the claims page.
pub mod claims {
    /// Nonzero while the reader is blocked until a frame is published: [`BY_FUTEX`], or another
    /// number for a sleep on its wake-up socket.
    pub const SLEEPING: usize = 0;
    /// The reader sleeps on its wake-up socket.
    pub const BY_SOCKET: u64 = 1;
    /// The reader sleeps on its word of the wake-up page.
    pub const BY_FUTEX: u64 = 2;
    /// Claim of the first entry; starts a cache line.
    pub const ENTRIES: usize = 8;
}

/// Word offsets in the counters of the reader, from [`counters_at`] on. The reader alone writes
/// them; they begin at 0.
pub mod counters {
    use crate::counters::{AGE_RANGES, ReaderCopy};

    /// Number of frames in each range of ages ([`Ages`](crate::Ages)).
    pub const AGES: usize = 0;
    /// Sum of the ages in ns.
    pub const AGE_SUM: usize = AGES + AGE_RANGES;
    /// Number of copies for each [`ReaderCopy`].
    pub const COPIES: usize = AGE_SUM + 1;
    /// Number of words: whole cache lines.
    pub const WORDS: usize = (COPIES + ReaderCopy::ALL.len()).next_multiple_of(8);
}

/// Number of 32-bit words of a wake-up page.
pub const WAKE_WORDS: u32 = 1024;

/// Word offsets in the header of the timeline page.
pub mod timeline {
    /// Sequence number of the newest frame whose ready fence is signaled.
    pub const READY: usize = 0;
    /// Release value of the first entry; starts a cache line.
    pub const ENTRIES: usize = 8;
}

/// Value of [`queue::MAGIC`] for this version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fshrq\0\0\0") | (VERSION as u64) << 48;

/// Returns the word offset of the descriptor of `entry` in the queue page.
pub const fn descriptor_at(entry: EntryIndex) -> usize {
    queue::ENTRIES + entry.0 * descriptor::WORDS
}

/// Returns the word offset of the claim of `entry` in the claims page.
pub const fn claim_at(entry: EntryIndex) -> usize {
    claims::ENTRIES + entry.0
}

/// Returns the size in bytes of a queue page with `entries` entries.
pub const fn queue_size(entries: usize) -> usize {
    descriptor_at(EntryIndex(entries)) * 8
}

/// Returns the word offset of the reader's counters in the claims page with `entries` entries.
pub const fn counters_at(entries: usize) -> usize {
    claim_at(EntryIndex(entries)).next_multiple_of(8)
}

/// Returns the size in bytes of a claims page with `entries` entries.
pub const fn claims_size(entries: usize) -> usize {
    (counters_at(entries) + counters::WORDS) * 8
}

/// Returns the word offset of the release value of `entry` in the timeline page.
pub const fn release_at(entry: EntryIndex) -> usize {
    timeline::ENTRIES + entry.0
}

/// Returns the size in bytes of a timeline page with `entries` entries: whole pages, as the GPU
/// maps them.
pub const fn timeline_size(entries: usize) -> usize {
    (release_at(EntryIndex(entries)) * 8).next_multiple_of(4096)
}

/// Returns the size in bytes of the metadata areas for `slots` slots.
pub const fn metadata_size(slots: u32) -> usize {
    slots as usize * limits::METADATA_AREA
}

/// Returns the size in bytes of `count` large metadata areas.
pub const fn large_areas_size(count: u32) -> usize {
    count as usize * limits::LARGE_AREA
}

/// State of a published frame in one reader's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// Revoked by the exporter before the reader took it; also the state of an unused entry.
    Revoked = 0,
    /// Available to the reader.
    Published = 1,
    /// Taken by the reader, which may read the frame.
    Taken = 2,
    /// Released by the reader.
    Released = 3,
}

/// A claim word: sequence number and state in one word, so that both change together.
///
/// A reader takes a frame by a compare-and-exchange of exactly `(sequence, Published)`. If the
/// entry was revoked and reused meanwhile, it has another sequence number, and the exchange fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Sequence number of the frame, below 2⁶².
    pub sequence: Sequence,
    /// State of the frame.
    pub state: ClaimState,
}

impl Claim {
    /// Encodes the claim as a word.
    pub const fn encode(self) -> u64 {
        self.sequence.0 << 2 | self.state as u64
    }

    /// Decodes a claim word; every value is valid.
    pub const fn decode(word: u64) -> Self {
        let state = match word & 3 {
            0 => ClaimState::Revoked,
            1 => ClaimState::Published,
            2 => ClaimState::Taken,
            _ => ClaimState::Released,
        };
        Self { sequence: Sequence(word >> 2), state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_round_trip_is_lossless() {
        for state in [ClaimState::Revoked, ClaimState::Published, ClaimState::Taken, ClaimState::Released] {
            for sequence in [0, 1, 7, (1 << 62) - 1].map(Sequence) {
                let claim = Claim { sequence, state };
                assert_eq!(Claim::decode(claim.encode()), claim);
            }
        }
    }

    #[test]
    fn zeroed_page_has_no_claimable_entry() {
        assert_eq!(Claim::decode(0).state, ClaimState::Revoked);
    }
}
