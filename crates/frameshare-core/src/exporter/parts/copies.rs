// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies of frames, counted by reason.

use frameshare_protocol::{CopyCount, counters::is_copy_reason, limits::MAX_COPY_REASONS};
use std::collections::BTreeMap;

/// The reason of copies whose own reason is no valid name, or one too many.
const OTHER: &str = "other";

/// Numbers of copies by reason.
#[derive(Debug, Default)]
pub struct Copies(BTreeMap<&'static str, u64>);

impl Copies {
    /// Counts a copy, and returns the number of those for its reason.
    pub fn count(&mut self, reason: &'static str) -> u64 {
        // One place is kept for the other reasons.
        let has_room = self.0.len() < MAX_COPY_REASONS - 1 || self.0.contains_key(reason);
        let reason = if has_room && is_copy_reason(reason) { reason } else { OTHER };
        let count = self.0.entry(reason).or_default();
        *count += 1;
        *count
    }

    /// Reasons and numbers, in the order of the reasons.
    pub fn all(&self) -> Vec<CopyCount> {
        self.0.iter().map(|(reason, count)| CopyCount { reason: (*reason).into(), count: *count }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    #[test]
    fn reasons_beyond_limit_are_counted_as_other() {
        static NAMES: LazyLock<Vec<String>> =
            LazyLock::new(|| (0..100).map(|number| format!("reason-{number:02}")).collect());
        let mut copies = Copies::default();
        for name in NAMES.iter() {
            copies.count(name);
        }
        assert_eq!(copies.count("reason-00"), 2);
        assert_eq!(copies.count("Not a name"), 100 - (MAX_COPY_REASONS as u64 - 1) + 1);
        let all = copies.all();
        assert_eq!(all.len(), MAX_COPY_REASONS);
        assert_eq!(all.iter().map(|copies| copies.count).sum::<u64>(), 102);
        assert!(all.iter().all(|copies| is_copy_reason(&copies.reason)));
    }
}
