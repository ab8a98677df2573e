// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports to the owner of the stream, to its observers and to the log.

use super::{copies::Copies, refusals::Refusals};
use crate::exporter::{
    ending::Ending,
    notice::{Notice, ReaderInfo},
    peer::Peer,
};
use frameshare_protocol::{
    CopyCount,
    limits::MAX_INCIDENTS,
    message::{Incident, Reason},
};
use std::{collections::VecDeque, mem};

/// Owns notices and lines for the log until the state is unlocked, the last evictions and refusals
/// for observers, and the numbers of copies. It decides nothing: what happened is told to it.
#[derive(Debug, Default)]
pub struct Reports {
    notices: Vec<Notice>,
    /// Lines for the log: a logger is foreign code.
    warnings: Vec<String>,
    refusals: Refusals,
    /// Oldest first.
    incidents: VecDeque<Incident>,
    copies: Copies,
}

impl Reports {
    /// Tells the owner.
    pub fn tell(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// Adds a line to the log.
    pub fn warn(&mut self, line: String) {
        self.warnings.push(line);
    }

    /// Tells the owner of a refused reader or observer, and keeps the refusal for observers.
    /// Repeated ones of a process are kept once a second, so that they do not displace others.
    /// `now` is in ns of `CLOCK_MONOTONIC`.
    pub fn note_refusal(&mut self, peer: &Peer, refusal: &Ending, now: u64) {
        let notice = self.refusals.note(peer, refusal.text.clone(), now);
        if let Some(Notice::ReaderRefused { pid, uid, why }) = &notice {
            self.add_incident(Incident {
                time: now,
                reader: None,
                pid: *pid,
                uid: *uid,
                name: String::new(),
                reason: refusal.reason,
                text: why.clone(),
            });
        }
        self.notices.extend(notice);
    }

    /// Tells the owner of a removed reader, and keeps an eviction for observers. `now` is in ns of
    /// `CLOCK_MONOTONIC`.
    pub fn note_removal(&mut self, reader: &ReaderInfo, ending: &Ending, now: u64) {
        let why = ending.text.clone();
        if ending.reason != Reason::Stopped {
            self.add_incident(Incident {
                time: now,
                reader: Some(reader.id),
                pid: reader.pid,
                uid: reader.uid,
                name: reader.name.clone(),
                reason: ending.reason,
                text: why.clone(),
            });
        }
        self.tell(Notice::ReaderRemoved { reader: reader.clone(), reason: ending.reason, why });
    }

    fn add_incident(&mut self, incident: Incident) {
        if self.incidents.len() >= MAX_INCIDENTS {
            self.incidents.pop_front();
        }
        self.incidents.push_back(incident);
    }

    /// The last evictions and refusals, oldest first.
    pub fn incidents(&self) -> Vec<Incident> {
        self.incidents.iter().cloned().collect()
    }

    /// Counts a copy of a frame, and returns the number of those for its reason.
    pub fn count_copy(&mut self, reason: &'static str) -> u64 {
        self.copies.count(reason)
    }

    /// Reasons and numbers of copies, in the order of the reasons.
    pub fn copies(&self) -> Vec<CopyCount> {
        self.copies.all()
    }

    /// Returns whether there are notices, or lines for the log.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.notices.is_empty() || !self.warnings.is_empty()
    }

    /// Takes the notices, to be queued for the owner.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        mem::take(&mut self.notices)
    }

    /// Takes the lines for the log.
    pub fn take_warnings(&mut self) -> Vec<String> {
        mem::take(&mut self.warnings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_protocol::Policy;

    #[test]
    fn newest_incidents_are_kept() {
        let mut reports = Reports::default();
        let peer = |pid| Peer { pid, uid: 1, ..Peer::default() };
        let times: Vec<u64> = (0..100).map(|time| time * 2_000_000_000).collect();
        for time in &times {
            reports.note_refusal(&peer(1), &Ending::new(Reason::Failed, "no"), *time);
        }
        let kept: Vec<_> = reports.incidents().iter().map(|incident| incident.time).collect();
        assert_eq!(kept, times[times.len() - MAX_INCIDENTS..]);
        assert_eq!(reports.take_notices().len(), times.len());
    }

    #[test]
    fn eviction_is_an_incident_and_disconnection_is_none() {
        let (id, pid, uid, name) = (3, 7, 1000, "viewer".to_string());
        let reader = ReaderInfo { id, pid, uid, name, policy: Policy::Lossless, credit: 4, max_queued: 4 };
        for (reason, incidents) in [(Reason::Stopped, 0), (Reason::TooSlow, 1)] {
            let mut reports = Reports::default();
            reports.note_removal(&reader, &Ending::new(reason, "why"), 50);
            let kept = reports.incidents();
            assert!(
                kept.len() == incidents && kept.iter().all(|one| one.reader == Some(3) && one.time == 50)
            );
            let notice = Notice::ReaderRemoved { reader: reader.clone(), reason, why: "why".into() };
            assert_eq!(reports.take_notices(), [notice]);
        }
    }

    #[test]
    fn notices_and_warnings_are_taken_once() {
        let mut reports = Reports::default();
        assert!(!reports.has_any());
        reports.tell(Notice::SocketBound);
        assert!(reports.has_any());
        assert_eq!(reports.take_notices(), [Notice::SocketBound]);
        assert!(!reports.has_any());
        reports.warn("slow".into());
        assert!(reports.has_any());
        assert_eq!(reports.take_warnings(), ["slow"]);
        assert!(!reports.has_any());
    }
}
