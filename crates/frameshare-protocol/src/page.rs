//! The layout of the pages that an exporter and one reader share.
//!
//! A page is an array of 64-bit words in the machine's byte order, every one of them accessed atomically.
//!
//! - The **queue page** is written by the exporter alone (the reader's mapping is read-only, and the seals
//!   allow no other): a header, then one [`descriptor`](mod@crate::descriptor) per entry.
//! - The **claims page** is written by both: whether the reader sleeps, then one [`Claim`] per entry.
//!
//! - The **timeline page**, where the two use timeline fences, is written by the GPU streams of both: one ready word,
//!   whose value is the sequence number of the newest frame that is written, and a release word per entry, whose
//!   value is the sequence number of the newest frame in it that is read. The exporter seals its size, the reader, once it
//!   has mapped it, everything: a GPU holds on to the memory that it was given, whatever becomes of the file.
//!
//! An entry carries one lease at a time. Entries have no order among themselves: sequence numbers give it.

use crate::{VERSION, descriptor, limits};

/// Words of the queue page, before its entries.
pub mod queue {
    /// Magic number and version; written last, so that a page without it is not ready.
    pub const MAGIC: usize = 0;
    /// One more than the sequence number of the newest publication of this queue.
    pub const HEAD: usize = 1;
    /// Not zero while the exporter sleeps until a lease ends.
    pub const WAITING: usize = 2;
    /// The first entry's descriptor; on a cache line of its own.
    pub const ENTRIES: usize = 8;
}

/// Words of the claims page, before its entries.
pub mod claims {
    /// Not zero while the reader sleeps until something is published.
    pub const SLEEPING: usize = 0;
    /// The first entry's claim; on a cache line of its own.
    pub const ENTRIES: usize = 8;
}

/// Words of the timeline page, before its entries.
pub mod timeline {
    /// The sequence number of the newest frame whose ready fence is signalled.
    pub const READY: usize = 0;
    /// The first entry's release word; on a cache line of its own.
    pub const ENTRIES: usize = 8;
}

/// The value of [`queue::MAGIC`] in a page of this version.
pub const MAGIC: u64 = u64::from_le_bytes(*b"fshrq\0\0\0") | (VERSION as u64) << 48;

/// Where the descriptor of `entry` starts in the queue page.
pub const fn descriptor_at(entry: usize) -> usize {
    queue::ENTRIES + entry * descriptor::WORDS
}

/// Where the claim of `entry` lies in the claims page.
pub const fn claim_at(entry: usize) -> usize {
    claims::ENTRIES + entry
}

/// Bytes of a queue page with `entries` entries.
pub const fn queue_size(entries: usize) -> usize {
    descriptor_at(entries) * 8
}

/// Bytes of a claims page with `entries` entries.
pub const fn claims_size(entries: usize) -> usize {
    claim_at(entries) * 8
}

/// Where the release word of `entry` lies in the timeline page.
pub const fn release_at(entry: usize) -> usize {
    timeline::ENTRIES + entry
}

/// Bytes of a timeline page with `entries` entries: whole pages, as the GPU maps them.
pub const fn timeline_size(entries: usize) -> usize {
    (release_at(entries) * 8).next_multiple_of(4096)
}

/// Bytes of the metadata areas of `slots` slots' worth of publications.
pub const fn metadata_size(slots: u32) -> usize {
    slots as usize * limits::METADATA_AREA
}

/// What has become of a publication in one reader's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimState {
    /// The exporter took it back before the reader took it; also the state of an entry never used.
    Revoked = 0,
    /// The reader may take it.
    Published = 1,
    /// The reader has taken it and may read the frame.
    Taken = 2,
    /// The reader is done with it.
    Released = 3,
}

/// A claim word: sequence number and state in one, so that neither changes without the other.
///
/// A reader claims by exchanging exactly `(sequence, Published)`; an entry that was revoked and used again in
/// between has another sequence number, and the exchange fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The publication's sequence number, below 2⁶².
    pub sequence: u64,
    /// What has become of it.
    pub state: ClaimState,
}

impl Claim {
    /// The claim as a word.
    pub const fn encode(self) -> u64 {
        self.sequence << 2 | self.state as u64
    }

    /// The claim that a word stands for; every word stands for one.
    pub const fn decode(word: u64) -> Self {
        let state = match word & 3 {
            0 => ClaimState::Revoked,
            1 => ClaimState::Published,
            2 => ClaimState::Taken,
            _ => ClaimState::Released,
        };
        Self { sequence: word >> 2, state }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_survive_the_round_trip() {
        for state in [ClaimState::Revoked, ClaimState::Published, ClaimState::Taken, ClaimState::Released] {
            for sequence in [0, 1, 7, (1 << 62) - 1] {
                let claim = Claim { sequence, state };
                assert_eq!(Claim::decode(claim.encode()), claim);
            }
        }
    }

    #[test]
    fn an_unused_page_reads_as_nothing_to_take() {
        assert_eq!(Claim::decode(0).state, ClaimState::Revoked);
    }
}
