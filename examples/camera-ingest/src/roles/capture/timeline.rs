// SPDX-License-Identifier: MIT OR Apache-2.0

//! Times of a camera's streams through all its sessions.

use gst::{ClockTime, Signed};
use std::sync::{Mutex, PoisonError};

/// Conversion of running times to CLOCK_MONOTONIC. A session, or a round of a file, begins after
/// the end of the one before. Its units keep their distances to each other, in any order.
#[derive(Default)]
pub struct Timeline(Mutex<State>);

#[derive(Default)]
struct State {
    /// Time of the session's running time 0, from its first unit on.
    origin: Option<ClockTime>,
    /// Latest end of a unit of all sessions.
    end: ClockTime,
}

impl Timeline {
    /// Begins a session.
    pub fn begin(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).origin = None;
    }

    /// Returns the time of running time 0 in the present session, whose pipeline has this base
    /// time. It stays: a pipeline gets another base time when a sink that was added later has
    /// prerolled.
    pub fn origin(&self, base: ClockTime) -> ClockTime {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let end = state.end;
        *state.origin.get_or_insert_with(|| base.max(end))
    }

    /// Notes the end of a unit.
    pub fn extend(&self, end: ClockTime) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.end = state.end.max(end);
    }
}

/// Returns a running time on CLOCK_MONOTONIC; none if it is before the machine's start.
pub fn since(origin: ClockTime, running: Signed<ClockTime>) -> Option<ClockTime> {
    match running {
        Signed::Positive(time) => origin.checked_add(time),
        Signed::Negative(time) => origin.checked_sub(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_begins_after_the_last_one_and_is_shifted_as_a_whole() {
        let time = ClockTime::from_mseconds;
        let timeline = Timeline::default();
        assert_eq!(timeline.origin(time(1000)), time(1000));
        for end in [1040, 1200, 1120, 1080, 1160] {
            timeline.extend(time(end));
            assert_eq!(timeline.origin(time(1500)), time(1000), "the base time changes meanwhile");
        }
        timeline.begin();
        assert_eq!(timeline.origin(time(1190)), time(1200));
        timeline.extend(time(1240));
        assert_eq!(timeline.origin(time(1190)), time(1200));
        timeline.begin();
        assert_eq!(timeline.origin(time(9000)), time(9000));
    }
}
