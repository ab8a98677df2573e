// SPDX-License-Identifier: MIT OR Apache-2.0

//! Start of a reader of an encoded stream at a key unit: after joining, and after a loss.

use crate::exporter::unit::Unit;
use std::time::{Duration, Instant};

/// Maximum time that a reader waits for a key unit. After it delta units are delivered: streams
/// with intra refresh have no key units.
pub const MAX_WAIT: Duration = Duration::from_secs(2);

/// The first unit that a reader gets next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// Any unit.
    #[default]
    AtOnce,
    /// A key unit: the reader joined, or the stream began, between two. Units before are not lost;
    /// `passed` tells whether there were any since the reader was last told of them.
    Joining {
        /// Since then.
        since: Instant,
        /// Units have passed.
        passed: bool,
    },
    /// A key unit: the reader lost one that others depend on. Units before are lost.
    Resuming {
        /// Since then.
        since: Instant,
    },
}

impl Start {
    /// The start of a reader that joins between two key units.
    pub fn join(now: Instant) -> Self {
        Self::Joining { since: now, passed: false }
    }

    /// The start of a reader that has lost a unit.
    pub fn resume(now: Instant) -> Self {
        Self::Resuming { since: now }
    }

    /// Has the reader wait for a key unit, unless it does already.
    pub fn await_key(&mut self, now: Instant) {
        if !self.awaits_key() {
            *self = Self::join(now);
        }
    }

    /// Returns whether the reader waits for a key unit.
    pub fn awaits_key(&self) -> bool {
        !matches!(self, Self::AtOnce)
    }

    /// Returns whether a unit starts the reader, or the reader has waited for too long.
    pub fn begins_with(&self, unit: Unit, now: Instant) -> bool {
        match self {
            Self::AtOnce => true,
            Self::Joining { since, .. } | Self::Resuming { since } => {
                unit != Unit::Delta || now.saturating_duration_since(*since) >= MAX_WAIT
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reader_starts_with_a_key_unit_or_after_the_longest_wait() {
        let now = Instant::now();
        let before = MAX_WAIT - Duration::from_nanos(1);
        for start in [Start::join(now), Start::resume(now)] {
            assert!(start.awaits_key());
            for (unit, wait, begins) in [
                (Unit::Key, Duration::ZERO, true),
                (Unit::Whole, Duration::ZERO, true),
                (Unit::Delta, before, false),
                (Unit::Delta, MAX_WAIT, true),
            ] {
                assert_eq!(start.begins_with(unit, now + wait), begins, "{start:?}: {unit:?} after {wait:?}");
            }
        }
        assert!(!Start::AtOnce.awaits_key() && Start::AtOnce.begins_with(Unit::Delta, now));
    }

    #[test]
    fn wait_for_a_key_unit_begins_once() {
        let now = Instant::now();
        let later = now + Duration::from_secs(1);
        let mut start = Start::AtOnce;
        for time in [now, later] {
            start.await_key(time);
            assert_eq!(start, Start::join(now));
        }
        let mut start = Start::resume(now);
        start.await_key(later);
        assert_eq!(start, Start::resume(now));
    }
}
