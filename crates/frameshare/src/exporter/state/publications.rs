// SPDX-License-Identifier: MIT OR Apache-2.0

//! Publications: frames with at least one lease, by metadata area.

use super::State;
use crate::exporter::slot::Slot;
use frameshare_protocol::AreaIndex;
use std::any::Any;

/// A publication with at least one lease.
pub struct Publication {
    pub slot: Slot,
    pub leases: u32,
    pub keep: Option<Box<dyn Any + Send>>,
}

impl State {
    /// Records a publication without leases, and returns its metadata area.
    pub fn open_publication(&mut self, slot: Slot, keep: Option<Box<dyn Any + Send>>) -> Option<AreaIndex> {
        let Some(area) = self.publications.iter().position(Option::is_none) else {
            self.dropped.extend(keep);
            return None;
        };
        self.publications[area] = Some(Publication { slot, leases: 1, keep });
        Some(AreaIndex(area as u32))
    }

    /// Counts one more lease on a publication.
    pub fn add_lease(&mut self, area: AreaIndex) {
        if let Some(publication) = &mut self.publications[area.0 as usize] {
            publication.leases += 1;
        }
    }

    pub fn end_leases(&mut self, areas: impl IntoIterator<Item = AreaIndex>) {
        for area in areas {
            self.end_lease(area);
        }
    }

    /// Ends one lease on a publication: a reader's, a download's, or the publisher's own.
    pub fn end_lease(&mut self, area: AreaIndex) {
        let Some(publication) = &mut self.publications[area.0 as usize] else { return };
        publication.leases -= 1;
        if publication.leases == 0
            && let Some(Publication { slot, keep, .. }) = self.publications[area.0 as usize].take()
        {
            self.end_publication(slot, keep);
        }
    }
}
