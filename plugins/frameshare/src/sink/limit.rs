// SPDX-License-Identifier: MIT OR Apache-2.0

//! Limit of warnings about readers: a process that connects again and again must not fill the bus.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Minimum time between two warnings of one kind about one process.
const PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of remembered processes. Warnings about further ones are left out until others
/// are forgotten.
const MAX_PROCESSES: usize = 64;

/// Kind of a warning about a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Refused,
    Evicted,
    Blocking,
}

/// Processes that were warned of, and the warnings left out since.
#[derive(Debug, Default)]
pub(super) struct MessageLimit(BTreeMap<(Kind, u32, u32), (Instant, u64)>);

impl MessageLimit {
    /// Returns whether a warning is due, with the number of those about the same process that were
    /// left out before it.
    pub(super) fn admit(&mut self, kind: Kind, uid: u32, pid: u32, now: Instant) -> Option<u64> {
        let key = (kind, uid, pid);
        let recent = |last: Instant| now.duration_since(last) < PAUSE;
        if let Some((_, left_out)) = self.0.get_mut(&key).filter(|(last, _)| recent(*last)) {
            *left_out += 1;
            return None;
        }
        let left_out = self.0.remove(&key).map_or(0, |(_, left_out)| left_out);
        if self.0.len() >= MAX_PROCESSES {
            self.0.retain(|_, (last, _)| recent(*last));
        }
        if self.0.len() >= MAX_PROCESSES {
            return None;
        }
        self.0.insert(key, (now, 0));
        Some(left_out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_warnings_about_a_process_are_left_out() {
        let (mut limit, start) = (MessageLimit::default(), Instant::now());
        assert_eq!(limit.admit(Kind::Refused, 1, 7, start), Some(0));
        for _ in 0..5 {
            assert_eq!(limit.admit(Kind::Refused, 1, 7, start), None);
        }
        assert_eq!(limit.admit(Kind::Evicted, 1, 7, start), Some(0));
        assert_eq!(limit.admit(Kind::Refused, 1, 8, start), Some(0));
        assert_eq!(limit.admit(Kind::Refused, 1, 7, start + PAUSE), Some(5));
        let admitted = (100..1000).filter(|pid| limit.admit(Kind::Refused, 1, *pid, start + PAUSE).is_some());
        assert!(admitted.count() <= MAX_PROCESSES);
        assert_eq!(limit.admit(Kind::Refused, 1, 1000, start + 2 * PAUSE), Some(0));
    }
}
