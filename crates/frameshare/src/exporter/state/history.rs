// SPDX-License-Identifier: MIT OR Apache-2.0

//! History: the last frame is kept for readers that join later.

use super::State;
use crate::{
    exporter::{
        config::History,
        link::{Packet, WaitingFrame},
        slot::Slot,
    },
    sys::monotonic_ns,
};
use frameshare_protocol::{AreaIndex, Descriptor};
use std::{mem, time::Duration};

impl State {
    /// Sets what is kept for readers that join later.
    pub fn set_history(&mut self, history: History) {
        self.config.history = history;
        if history == History::None {
            self.forget_last();
        }
    }

    /// Keeps the frame that has just been published, in place of the last one. Adopted memory is
    /// its owner's, who may need it soon.
    pub(super) fn keep_last(
        &mut self,
        slot: &Slot,
        area: AreaIndex,
        descriptor: &Descriptor,
        oversized: Option<Packet>,
    ) {
        if self.config.history == History::None {
            return;
        }
        self.forget_last();
        if !self.is_adopted(slot) {
            self.add_lease(area);
            let (descriptor, bytes) = (descriptor.clone(), slot.size());
            self.last = Some(WaitingFrame { area, descriptor, oversized, bytes });
        }
    }

    /// Returns whether the publication in this area has no lease but that of the kept frame: it
    /// ends with the next frame, and no polling ends it before.
    pub(super) fn is_only_kept(&self, area: AreaIndex) -> bool {
        let leases = self.publications[area.0 as usize].as_ref().map(|publication| publication.leases);
        leases == Some(1) && self.last.as_ref().is_some_and(|last| last.area == area)
    }

    /// Forgets the last frame: it is no longer one of the present stream.
    pub fn forget_last(&mut self) {
        if let Some(last) = mem::take(&mut self.last) {
            self.end_lease(last.area);
        }
    }

    /// Returns the last frame for a joining reader, if the reader can get it where it is. It
    /// `downloads` frames or not.
    pub fn last_for(&self, downloads: bool) -> Option<&WaitingFrame> {
        let History::Last(after) = self.config.history else { return None };
        let age = |last: &WaitingFrame| monotonic_ns().saturating_sub(last.descriptor.published);
        let is_old = |last: &&WaitingFrame| Duration::from_nanos(age(last)) >= after;
        self.last.as_ref().filter(is_old).filter(|_| !downloads)
    }
}
