// SPDX-License-Identifier: MIT OR Apache-2.0

//! Identities of frames, queue entries, metadata areas and slots.

use serde::{Deserialize, Serialize};
use std::fmt;

/// Sequence number of a frame in its stream, counted from 1. Below 2⁶², so that it fits a
/// [`Claim`](crate::page::Claim).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The first frame of a stream.
    pub const FIRST: Self = Self(1);

    /// The frame after this one.
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }

    /// The frame before this one.
    pub const fn previous(self) -> Self {
        Self(self.0.wrapping_sub(1))
    }

    /// Number of frames from `earlier` to this one; 0 if `earlier` is not earlier.
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Index of an entry of one reader's queue. An entry holds one lease at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryIndex(pub usize);

impl fmt::Display for EntryIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Index of a metadata area. A publication holds one area as long as it has leases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AreaIndex(pub u32);

impl AreaIndex {
    /// Offset of the area in the metadata areas, in 64-bit words.
    pub const fn first_word(self) -> usize {
        self.0 as usize * (crate::limits::METADATA_AREA / 8)
    }

    /// Offset of the large area of the same index in the large areas, in 64-bit words.
    pub const fn first_large_word(self) -> usize {
        self.0 as usize * (crate::limits::LARGE_AREA / 8)
    }
}

impl fmt::Display for AreaIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A slot: its generation, and its number in the generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SlotId {
    /// Number of the generation.
    pub generation: u32,
    /// Number of the slot in its generation.
    pub index: u32,
}

impl fmt::Display for SlotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of generation {}", self.index, self.generation)
    }
}
