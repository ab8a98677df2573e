// SPDX-License-Identifier: MIT OR Apache-2.0

//! For how long a reader has held the stream back.

use super::leases::Progress;
use std::time::Duration;

/// Owns the time that the stream has stood still while one reader had something to do and did
/// nothing. It reads no clock: the time is told to it. A reader that takes or releases a frame
/// begins again.
#[derive(Debug, Default)]
pub struct Stall {
    time: Duration,
    /// The reader's progress at that time.
    progress: Progress,
    /// The stall was reported to the owner.
    is_reported: bool,
}

impl Stall {
    /// Records that the stream has stood still for this time, and whether the reader had something
    /// to do. Returns the time of the whole stall.
    pub fn note(&mut self, time: Duration, progress: Progress, is_busy: bool) -> Duration {
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
