// SPDX-License-Identifier: MIT OR Apache-2.0

//! For how long a reader has held the stream back.

use super::leases::Progress;
use std::time::Duration;

/// Owns the time that the stream has stood still while one reader had something to do and did
/// nothing. It reads no clock: the time is told to it. The stall begins again when the reader takes
/// or releases a frame: its progress (`P`) changes then.
#[derive(Debug, Default)]
pub struct Stall<P = Progress> {
    time: Duration,
    /// The reader's progress at that time.
    progress: P,
    /// The stall was reported to the owner.
    is_reported: bool,
}

impl<P: Default + PartialEq> Stall<P> {
    /// Records that the stream has stood still for this time, and whether the reader had something
    /// to do. Returns the time of the whole stall.
    pub fn note(&mut self, time: Duration, progress: P, is_busy: bool) -> Duration {
        if progress != self.progress {
            *self = Self { progress, ..Self::default() };
        } else if is_busy {
            self.time += time;
        }
        self.time
    }

    /// Records that the stall was reported to the owner.
    pub fn note_report(&mut self) {
        self.is_reported = true;
    }

    /// Returns whether the stall was reported to the owner.
    pub fn is_reported(&self) -> bool {
        self.is_reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    #[test]
    fn stall_lasts_while_a_busy_reader_makes_no_progress() {
        let mut stall = Stall::<u64>::default();
        assert_eq!(stall.note(STEP, 7, true), Duration::ZERO, "the first progress");
        assert_eq!(stall.note(STEP, 7, true), STEP);
        assert_eq!(stall.note(STEP, 7, false), STEP, "the reader has nothing to do");
        assert_eq!(stall.note(STEP, 7, true), 2 * STEP);
        assert!(!stall.is_reported());
        stall.note_report();
        assert!(stall.is_reported());
        // Progress begins another stall, which is reported again.
        assert_eq!(stall.note(STEP, 8, true), Duration::ZERO);
        assert!(!stall.is_reported());
        assert_eq!(stall.note(STEP, 8, true), STEP);
    }
}
