// SPDX-License-Identifier: MIT OR Apache-2.0

//! Counters of a reader, and copies by reason.
//!
//! A reader counts in words of its claims page ([`page::counters`](crate::page::counters)), which
//! the exporter reads for snapshots only: it decides nothing from them.

use serde::{Deserialize, Serialize};

/// Upper bounds in ns of the ranges of [`Ages`]: 100 us to 5 s. The last range has no bound.
pub const AGE_BOUNDS: [u64; 15] = [
    100_000,
    200_000,
    500_000,
    1_000_000,
    2_000_000,
    5_000_000,
    10_000_000,
    20_000_000,
    50_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
];

/// Number of ranges of [`Ages`].
pub const AGE_RANGES: usize = AGE_BOUNDS.len() + 1;

/// Maximum length in bytes of a reason for copies.
pub const MAX_COPY_REASON: usize = 32;

/// Ages of the frames that a reader took: the time from the publication of each to the reader's
/// claim. Frames from before the reader joined are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ages {
    /// Number of frames in each range: those above the bound before, up to and including its own.
    pub counts: [u64; AGE_RANGES],
    /// Sum of the ages in ns.
    pub sum: u64,
}

impl Ages {
    /// Returns the range of an age in ns.
    pub fn range(age: u64) -> usize {
        AGE_BOUNDS.partition_point(|bound| *bound < age)
    }

    /// Number of counted frames.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Mean age in ns, if a frame was counted.
    pub fn mean(&self) -> Option<u64> {
        self.sum.checked_div(self.count())
    }

    /// Returns the bound of the range that contains this part of the frames, such as 0.99;
    /// `u64::MAX` for the last range, `None` before the first frame.
    pub fn quantile(&self, part: f64) -> Option<u64> {
        let count = self.count();
        let wanted = (count as f64 * part).ceil().max(1.0) as u64;
        let mut sum = 0_u64;
        let reached = |count: &u64| {
            sum = sum.saturating_add(*count);
            sum >= wanted
        };
        let range = self.counts.iter().position(reached).filter(|_| count > 0)?;
        Some(AGE_BOUNDS.get(range).copied().unwrap_or(u64::MAX))
    }
}

/// The reason why a reader's application copied a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReaderCopy {
    /// The reader held as many frames as its credit allows.
    Credit = 0,
    /// A consumer needs another layout or kind of memory.
    Layout = 1,
    /// A consumer writes into frames, or asks for a copy.
    Downstream = 2,
}

impl ReaderCopy {
    /// All reasons, in the order of their words.
    pub const ALL: [Self; 3] = [Self::Credit, Self::Layout, Self::Downstream];

    /// Returns the name of the reason.
    pub fn name(self) -> &'static str {
        match self {
            Self::Credit => "credit",
            Self::Layout => "layout",
            Self::Downstream => "downstream",
        }
    }
}

/// Number of copies for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopyCount {
    /// The reason: see [`is_copy_reason`].
    pub reason: String,
    /// Number of copies.
    pub count: u64,
}

/// Returns whether a name can be a reason for copies: 1 to 32 of `a` to `z`, `0` to `9` and `-`.
pub fn is_copy_reason(name: &str) -> bool {
    let is_valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_COPY_REASON).contains(&name.len()) && name.bytes().all(is_valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn age_at_bound_is_in_range_of_bound() {
        assert_eq!([0, 100_000, 100_001, 200_000].map(Ages::range), [0, 0, 1, 1]);
        assert_eq!([5_000_000_000, 5_000_000_001, u64::MAX].map(Ages::range), [14, 15, 15]);
        assert!(AGE_BOUNDS.is_sorted_by(|one, next| one < next));
    }

    #[test]
    fn mean_and_quantile_follow_counts() {
        let mut ages = Ages::default();
        assert_eq!((ages.mean(), ages.quantile(0.5)), (None, None));
        ages.counts[0] = 98;
        ages.counts[6] = 1;
        ages.counts[15] = 1;
        ages.sum = 1000;
        assert_eq!((ages.count(), ages.mean()), (100, Some(10)));
        assert_eq!([0.0, 0.5, 0.98].map(|part| ages.quantile(part)), [Some(100_000); 3]);
        assert_eq!([0.99, 1.0].map(|part| ages.quantile(part)), [Some(10_000_000), Some(u64::MAX)]);
    }

    #[test]
    fn counters_of_hostile_reader_do_not_overflow() {
        let ages = Ages { counts: [u64::MAX; AGE_RANGES], sum: u64::MAX };
        assert_eq!((ages.count(), ages.mean()), (u64::MAX, Some(1)));
        assert_eq!(ages.quantile(1.0), Some(100_000));
    }

    #[test]
    fn copy_reasons_are_short_plain_names() {
        assert!(ReaderCopy::ALL.iter().all(|reason| is_copy_reason(reason.name())));
        assert!(ReaderCopy::ALL.iter().enumerate().all(|(index, reason)| *reason as usize == index));
        for invalid in ["", "A", "a b", "a\"", "\u{e9}", &"a".repeat(33)] {
            assert!(!is_copy_reason(invalid), "{invalid}");
        }
    }
}
