// SPDX-License-Identifier: MIT OR Apache-2.0

//! Refused readers: one line for each process and time span, not one for each attempt.

use crate::exporter::{notice::Notice, peer::Peer};
use std::collections::BTreeMap;

/// Minimum time between two lines about one process, in ns.
const PAUSE: u64 = 1_000_000_000;
/// Maximum number of remembered processes. Further ones are not reported until others are
/// forgotten.
const MAX_PROCESSES: usize = 64;

/// Recently refused processes.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<(u32, u32), Refused>);

#[derive(Debug)]
struct Refused {
    /// In ns of `CLOCK_MONOTONIC`.
    reported: u64,
    unreported: u64,
}

impl Refusals {
    /// Returns the notice of a refusal, if one is due; the next line about the process counts
    /// unreported ones.
    pub fn note(&mut self, peer: &Peer, mut why: String, now: u64) -> Option<Notice> {
        let key = (peer.uid, peer.pid);
        let recent = |refused: &Refused| now.saturating_sub(refused.reported) < PAUSE;
        if let Some(refused) = self.0.get_mut(&key).filter(|refused| recent(refused)) {
            refused.unreported += 1;
            return None;
        }
        let unreported = self.0.remove(&key).map_or(0, |refused| refused.unreported);
        self.0.retain(|_, refused| refused.unreported > 0 || recent(refused));
        if self.0.len() >= MAX_PROCESSES {
            self.0.retain(|_, refused| recent(refused));
        }
        if self.0.len() >= MAX_PROCESSES {
            return None;
        }
        self.0.insert(key, Refused { reported: now, unreported: 0 });
        if unreported > 0 {
            why = format!("{why} (and {unreported} times more since it was named last)");
        }
        Some(Notice::ReaderRefused { pid: peer.pid, uid: peer.uid, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ops::Range;

    #[test]
    fn repeated_refusals_of_a_process_are_reported_once_a_second() {
        let peer = |pid| Peer { pid, uid: 1, ..Peer::default() };
        let (mut refusals, start) = (Refusals::default(), 7 * PAUSE);
        let mut why = |pid, now| match refusals.note(&peer(pid), "no".into(), now) {
            Some(Notice::ReaderRefused { why, .. }) => Some(why),
            _ => None,
        };
        assert_eq!(why(7, start).as_deref(), Some("no"));
        for _ in 0..5 {
            assert_eq!(why(7, start), None);
        }
        assert_eq!(why(8, start).as_deref(), Some("no"), "another process is named by itself");
        let later = why(7, start + PAUSE).unwrap();
        assert!(later.contains("5 times more"), "{later}");
        for pid in 100..1000 {
            why(pid, start + PAUSE);
        }
        assert_eq!(why(1000, start + PAUSE), None, "there is an end to it");
        assert!(why(1000, start + 3 * PAUSE).is_some());
    }

    /// Refuses all processes twice. The second refusal of each one is unreported.
    fn refuse_twice(refusals: &mut Refusals, pids: Range<u32>, now: u64) {
        for pid in pids.clone().chain(pids) {
            refusals.note(&Peer { pid, ..Peer::default() }, "no".into(), now);
        }
    }

    #[test]
    fn processes_without_unreported_refusals_are_forgotten_first() {
        let mut refusals = Refusals::default();
        let peer = |pid| Peer { pid, ..Peer::default() };
        refuse_twice(&mut refusals, 1..2, 0);
        for pid in 2..=MAX_PROCESSES as u32 {
            assert!(refusals.note(&peer(pid), "no".into(), 0).is_some());
        }
        assert!(refusals.note(&peer(1000), "no".into(), PAUSE).is_some());
        let Some(Notice::ReaderRefused { why, .. }) = refusals.note(&peer(1), "no".into(), PAUSE) else {
            panic!("the refusal is reported")
        };
        assert!(why.contains("1 times more"), "{why}");
    }

    #[test]
    fn unreported_refusals_are_forgotten_to_report_others() {
        let mut refusals = Refusals::default();
        refuse_twice(&mut refusals, 0..MAX_PROCESSES as u32, 0);
        let other = Peer { pid: 1000, ..Peer::default() };
        assert!(refusals.note(&other, "no".into(), PAUSE - 1).is_none());
        assert!(refusals.note(&other, "no".into(), PAUSE).is_some());
    }
}
