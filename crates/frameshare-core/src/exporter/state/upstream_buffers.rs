// SPDX-License-Identifier: MIT OR Apache-2.0

//! Buffers that upstream gets back: those that publications keep, and the sources of copies.

use super::State;
use crate::exporter::{parts::Urgency, system::System};

impl<S: System> State<S> {
    /// Learns from a publication. Has the service thread poll for what it keeps and for copies, in
    /// place of the poll that the publication before it asked for.
    pub fn await_returns(&mut self, keeps: bool) {
        if self.system.gpu().is_none() {
            return;
        }
        self.polling.note_publication(S::now_ns());
        if keeps || !self.pinned.is_empty() {
            self.polling.want_after_publication(self.polling.demanded());
        }
    }

    /// Returns the polling urgency for a buffer that upstream may wait for.
    pub fn demanded_urgency(&self) -> Urgency {
        // Without a GPU of its own the exporter does not learn from publications.
        if self.system.gpu().is_some() { self.polling.demanded() } else { Urgency::Unhurried }
    }

    /// Returns the polling urgency for buffers that upstream has not got back, and for GPU work
    /// of readers.
    pub fn returns_urgency(&self) -> Urgency {
        if self.count_unreturned() == 0 && !self.polling.fences_pending() {
            Urgency::None
        } else if self.closed || self.announcement.has_ended() || !self.readers.draining().is_empty() {
            // No publication follows, or a teardown waits.
            Urgency::Unhurried
        } else {
            self.demanded_urgency()
        }
    }

    /// Learns from a turn that found fewer buffers with readers or GPU work than there were before
    /// it, if upstream has published nothing for a while.
    pub fn note_returns(&mut self, before: usize) {
        if self.count_unreturned() < before {
            let now = S::now_ns();
            self.polling.note_return(now.saturating_sub(self.publications.last_at()), now);
        }
    }

    /// Returns the number of buffers of an exporter with a GPU, and of sources of copies, that
    /// upstream has not got back.
    pub fn count_unreturned(&self) -> usize {
        let leased = self.publications.leased().filter(|_| self.system.gpu().is_some());
        let kept = leased.filter(|(area, one)| one.keep.is_some() && !self.is_only_kept(*area));
        kept.count() + self.publications.unwritten().len() + self.pinned.len()
    }
}
