// SPDX-License-Identifier: MIT OR Apache-2.0

//! Buffers that upstream gets back: those that publications keep, and the sources of copies.
//!
//! A decoder that sleeps for a free buffer never calls the exporter, and a GPU sends no
//! notification of the end of its work: the service thread polls. A publication polls, too, and
//! while publications follow each other that is enough for the buffer of the last one. A sink may
//! keep that until the next one comes, as `GstBaseSink:enable-last-sample` does, so upstream goes
//! on without it.

use super::{State, Urgency, publications::Publication};
use frameshare_protocol::{AreaIndex, SlotId};

/// The last publication.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    pub area: AreaIndex,
    pub slot: SlotId,
    /// The one before it used the same slot: upstream may have only this one, and wait for it.
    pub repeats_slot: bool,
}

impl State {
    /// Has the service thread poll for buffers that the publication has left with readers, after a
    /// poll of all readers unless that was done before.
    pub fn after_publication(&mut self, polls: bool) {
        if polls {
            self.reclaim();
        }
        self.want_returns();
    }

    pub(super) fn want_returns(&mut self) {
        self.wanted_urgency = self.wanted_urgency.max(self.returns_urgency());
    }

    /// Returns the polling urgency for buffers that upstream gets back.
    pub(super) fn returns_urgency(&self) -> Urgency {
        if self.config.gpu.is_none() {
            return Urgency::None;
        }
        let kept = self.kept_publications();
        let copies = match self.pinned.len() {
            0 => Urgency::None,
            1 => Urgency::Idle,
            _ => Urgency::Unhurried,
        };
        kept.max(copies)
    }

    fn kept_publications(&self) -> Urgency {
        let urgency = |(area, publication): (usize, &Option<_>)| {
            let area = AreaIndex(area as u32);
            let keeps =
                publication.as_ref().is_some_and(|publication: &Publication| publication.keep.is_some());
            if !keeps || self.is_only_kept(area) {
                return Urgency::None;
            }
            match self.newest {
                Some(newest) if newest.area == area && !newest.repeats_slot => Urgency::Idle,
                _ => Urgency::Unhurried,
            }
        };
        self.publications.iter().enumerate().map(urgency).max().unwrap_or_default()
    }
}
