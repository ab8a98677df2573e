// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ends of publications, and of frames that are not published.

use super::State;
use crate::exporter::{
    parts::{Publication, Slots},
    system::{Signals, System},
};
use frameshare_protocol::AreaIndex;
use std::any::Any;

impl<S: System> State<S> {
    /// Records a publication without leases, and returns its metadata area.
    pub fn open_publication(
        &mut self,
        slot: S::Slot,
        keep: Option<Box<dyn Any + Send>>,
        writing: Option<<S::Signals as Signals>::Writing>,
    ) -> Option<AreaIndex> {
        let opened = self.publications.open(slot, keep, writing);
        opened.map_err(|publication| self.end_publication(publication)).ok()
    }

    /// Ends leases on publications.
    pub fn end_leases(&mut self, areas: impl IntoIterator<Item = AreaIndex>) {
        for area in areas {
            self.end_lease(area);
        }
    }

    /// Ends one lease on a publication: a reader's, a download's, or the publisher's own.
    pub fn end_lease(&mut self, area: AreaIndex) {
        if let Some(publication) = self.publications.end_lease(area) {
            self.end_publication(publication);
        }
    }

    /// Ends a publication without leases, once its write is done.
    fn end_publication(&mut self, publication: Publication<S>) {
        if is_writing(&self.signals, &self.slots, &publication) {
            self.publications.wait_for_write(publication);
            // Publications poll, and put that off.
            self.polling.want_after_publication(self.demanded_urgency());
        } else {
            self.free(publication.slot, publication.keep);
        }
    }

    /// Ends the publications without leases whose writes are done.
    pub fn collect_written(&mut self) {
        let (signals, slots) = (&self.signals, &self.slots);
        let is_writing = |publication: &Publication<S>| is_writing(signals, slots, publication);
        for publication in self.publications.take_written(is_writing) {
            self.free(publication.slot, publication.keep);
        }
    }
}

/// Returns whether the work that writes a publication is under way. Adopted memory is its owner's,
/// who orders the next write behind this one.
fn is_writing<S: System>(signals: &S::Signals, slots: &Slots<S>, publication: &Publication<S>) -> bool {
    let is_under_way = |writing| signals.is_writing(writing);
    publication.writing.as_ref().is_some_and(is_under_way) && !slots.is_adopted(&publication.slot)
}
