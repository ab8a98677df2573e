// SPDX-License-Identifier: MIT OR Apache-2.0

//! Lateness of frames: which of them are late because the stream had to wait for a reader.

use std::time::Duration;

/// A publication that took longer than this had to wait for a reader.
pub(super) const WAIT: Duration = Duration::from_millis(20);

/// Lateness of the frames, in ns of `CLOCK_MONOTONIC` after their presentation time.
#[derive(Debug, Default)]
pub(super) struct Lateness {
    /// Lateness of the last frame that followed no wait.
    usual: Option<i128>,
    /// The stream has waited, and its frames are later than usual.
    catches_up: bool,
}

impl Lateness {
    /// Returns whether a frame comes later than usual by more than `limit`, because of a wait.
    pub(super) fn is_late(&mut self, late: i128, limit: i128) -> bool {
        let usual = *self.usual.get_or_insert(late);
        self.catches_up &= late > usual + limit;
        if !self.catches_up {
            self.usual = Some(late);
        }
        self.catches_up
    }

    /// Records how long a publication took.
    pub(super) fn note(&mut self, took: Duration) {
        self.catches_up |= took > WAIT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_late_only_after_a_wait() {
        const MS: i128 = 1_000_000;
        let mut lateness = Lateness::default();
        let limit = 50 * MS;
        // A source whose times are always a second old.
        for late in [1000, 1010, 990, 1200] {
            assert!(!lateness.is_late(late * MS, limit));
            lateness.note(Duration::from_millis(1));
        }
        assert!(!lateness.is_late(1000 * MS, limit));
        lateness.note(Duration::from_millis(500));
        let caught_up = [1500, 1400, 1100, 1040, 1500].map(|late| lateness.is_late(late * MS, limit));
        assert_eq!(caught_up, [true, true, true, false, false]);
    }
}
