// SPDX-License-Identifier: MIT OR Apache-2.0

//! Publications: frames with at least one lease, by metadata area.
//!
//! A slot is free when all accesses to it have ended, its own write included. A publication without
//! leases, which no reader waited for, therefore holds its slot and its user data until the work
//! that writes it is done, and so does a frame that could not be published.

use super::State;
use crate::{
    exporter::{frame::Frame, slot::Slot},
    fence::{Writing, Written},
    gpu::DropWhenIdle,
};
use frameshare_protocol::AreaIndex;
use std::any::Any;

/// A publication with at least one lease, or with its write under way.
pub struct Publication {
    pub slot: Slot,
    pub leases: u32,
    pub keep: Option<Box<dyn Any + Send>>,
    /// The GPU work that writes the frame, if there is any.
    pub writing: Option<Writing>,
}

impl State {
    /// Records a publication without leases, and returns its metadata area.
    pub fn open_publication(
        &mut self,
        slot: Slot,
        keep: Option<Box<dyn Any + Send>>,
        writing: Option<Writing>,
    ) -> Option<AreaIndex> {
        let publication = Publication { slot, leases: 1, keep, writing };
        let Some(area) = self.publications.iter().position(Option::is_none) else {
            self.end_publication(publication);
            return None;
        };
        self.publications[area] = Some(publication);
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
            && let Some(publication) = self.publications[area.0 as usize].take()
        {
            self.end_publication(publication);
        }
    }

    /// Returns whether the work that writes a publication is under way. Adopted memory is its
    /// owner's, who orders the next write behind this one.
    fn is_writing(&self, publication: &Publication) -> bool {
        let is_writing = |writing: &Writing| self.signals.is_writing(writing);
        !self.is_adopted(&publication.slot) && publication.writing.as_ref().is_some_and(is_writing)
    }

    /// Ends a publication without leases, once its write is done.
    fn end_publication(&mut self, publication: Publication) {
        if self.is_writing(&publication) {
            self.unwritten.push(publication);
            // Publications poll, and put that off.
            self.poll_after_publication = self.demanded_urgency().interval();
        } else {
            self.free(publication.slot, publication.keep);
        }
    }

    /// Ends the publications without leases whose writes are done.
    pub fn collect_written(&mut self) {
        for index in (0..self.unwritten.len()).rev() {
            if !self.is_writing(&self.unwritten[index]) {
                let Publication { slot, keep, .. } = self.unwritten.swap_remove(index);
                self.free(slot, keep);
            }
        }
    }

    /// Publications that hold slots: those with leases, and those with writes under way.
    pub(super) fn holding(&self) -> impl Iterator<Item = &Publication> {
        self.publications.iter().flatten().chain(&self.unwritten)
    }

    /// Gives up a frame that is not published: its slot is in use, and its user data kept, until
    /// the work that writes it is done.
    pub fn abandon(&mut self, frame: Frame<'_>) {
        let held: Box<dyn Any + Send> = Box::new((frame.slot.clone(), frame.keep));
        let (recorded, gpu) = match (frame.written, &self.config.gpu) {
            _ if frame.slot.as_ptr().is_some() || self.is_adopted(frame.slot) => {
                return self.dropped.push(held);
            }
            (Written::On(stream), Some(gpu)) => (self.pinned.record(stream, gpu), stream.context().clone()),
            (Written::Somewhere, Some(gpu)) => (self.pinned.record_context(gpu), gpu.clone()),
            (Written::Cpu, _) | (_, None) => return self.dropped.push(held),
        };
        match recorded {
            Ok(written) => {
                self.wanted_urgency = self.wanted_urgency.max(self.demanded_urgency());
                self.pinned.hold(written, held);
            }
            // The work of the context is found later, after a capture of the stream, and the frame
            // dropped, with the state unlocked. Work from before the capture may be under way.
            Err(_) => self.trash.push(Box::new(DropWhenIdle::new(&gpu, held))),
        }
    }
}
