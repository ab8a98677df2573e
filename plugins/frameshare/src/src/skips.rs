// SPDX-License-Identifier: MIT OR Apache-2.0

//! Runs of skipped units: their length, and the losses that they cause.

use std::time::{Duration, Instant};

/// Time without a key unit after which skipped units are reported.
pub(super) const SKIPS_SILENTLY: Duration = Duration::from_secs(5);

/// The skipped units. Which units are skipped decides `LiveTime`.
#[derive(Default)]
pub(super) struct Skips {
    /// Begin of the present run.
    since: Option<Instant>,
    /// A warning about a long run was asked for.
    has_reported: bool,
    /// End of the last pause, in ns of `CLOCK_MONOTONIC`: frames that were published before are no
    /// news. 0 if there are none.
    resumed: u64,
    /// The frames that are skipped now count as lost: the reader had the ones before.
    counts: bool,
    /// Number of those before the next frame.
    missing: u64,
}

/// The consequence of a skipped unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Skipped {
    /// It is the first of its run: a key unit is wanted.
    First,
    /// No key unit has come for long, which was not reported yet.
    ForLong,
    Further,
}

impl Skips {
    /// Begins another connection: its first frames are skipped without a loss.
    pub fn begin_connection(&mut self) {
        self.counts = false;
    }

    /// Goes on after a pause that ended at this time, in ns of `CLOCK_MONOTONIC`.
    pub fn resume(&mut self, resumed: u64) {
        (self.resumed, self.counts) = (resumed, true);
    }

    /// Returns whether a frame was published before the end of the last pause.
    pub fn is_of_pause(&self, published: u64) -> bool {
        published < self.resumed
    }

    /// Ends the present run: this unit is not skipped.
    pub fn end(&mut self) {
        (self.since, self.counts) = (None, false);
    }

    /// Records a skipped unit, and the number of frames lost before it. Returns whether it counts
    /// as lost, and what follows.
    pub fn note(&mut self, lost_before: u64) -> (bool, Skipped) {
        if self.counts {
            self.missing = self.missing.saturating_add(lost_before.saturating_add(1));
        }
        let follows = match self.since {
            None => {
                self.since = Some(Instant::now());
                Skipped::First
            }
            Some(since) if since.elapsed() >= SKIPS_SILENTLY && !self.has_reported => {
                self.has_reported = true;
                Skipped::ForLong
            }
            Some(_) => Skipped::Further,
        };
        (self.counts, follows)
    }

    /// Returns the number of frames that count as lost since the last call.
    pub fn take_missing(&mut self) -> u64 {
        std::mem::take(&mut self.missing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_units_are_lost_after_a_pause_only() {
        let mut skips = Skips::default();
        assert_eq!(skips.note(3), (false, Skipped::First));
        assert_eq!(skips.note(0), (false, Skipped::Further));
        skips.end();
        assert_eq!(skips.take_missing(), 0);
        skips.resume(100);
        assert!(skips.is_of_pause(99) && !skips.is_of_pause(100));
        assert_eq!(skips.note(3), (true, Skipped::First));
        assert_eq!(skips.note(0), (true, Skipped::Further));
        assert_eq!((skips.take_missing(), skips.take_missing()), (5, 0));
        skips.begin_connection();
        assert_eq!(skips.note(3), (false, Skipped::Further));
        assert_eq!(skips.note(u64::MAX), (false, Skipped::Further));
        skips.resume(200);
        skips.note(u64::MAX);
        assert_eq!(skips.take_missing(), u64::MAX, "a peer's number does not overflow");
    }
}
