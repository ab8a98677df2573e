// SPDX-License-Identifier: MIT OR Apache-2.0

//! Trimming: slots that were allocated for a burst are freed some time after it.
//!
//! A free slot is taken from the front of its generation, so those at the end are in use only as
//! long as all others are: what was not in use for [`KEPT`] is beyond the peak of that time.

use super::State;
use crate::exporter::{
    parts::{KEPT, Urgency},
    system::System,
};
use std::time::Instant;

/// Number of slots that stay besides the reserve: one that is read, and one on its way back.
pub const SPARE: u32 = 2;

impl<S: System> State<S> {
    /// Begins checks after a slot was allocated.
    pub fn begin_trimming(&mut self) {
        if self.slots.begin_trimming(S::now()) {
            // The service thread learns of the time in its next turn.
            self.polling.want(Urgency::Unhurried);
        }
    }

    /// Takes slots out of use that were not needed for some time, if a check is due.
    pub fn trim(&mut self) {
        let now = S::now();
        if self.slots.is_check_due(now) {
            self.trim_unused_since(now.checked_sub(KEPT));
        }
    }

    /// Takes slots out of use that were not in use since a time, and continues the checks while
    /// there are more slots than stay in any case.
    pub fn trim_unused_since(&mut self, since: Option<Instant>) {
        let (least, now) = (self.reserve() + SPARE, S::now());
        let mut trimmed = 0;
        for index in 0..self.slots.generations().len() {
            if let Some(since) = since {
                let unused = self.slots.find_unused(index, since, least, now);
                trimmed += self.retire_slots(index, unused);
            }
        }
        self.slots.end_check(trimmed, least, self.closed, now);
    }
}
