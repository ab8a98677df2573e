// SPDX-License-Identifier: MIT OR Apache-2.0

//! The ends of publications, and of frames that are not published.

use super::State;
use crate::{
    exporter::{
        frame::Frame,
        parts::{Publication, Slots},
        slot::Slot,
    },
    fence::{Signals, Writing, Written},
    gpu::DropWhenIdle,
};
use frameshare_protocol::AreaIndex;
use std::any::Any;

impl State {
    /// Records a publication without leases, and returns its metadata area.
    pub fn open_publication(
        &mut self,
        slot: Slot,
        keep: Option<Box<dyn Any + Send>>,
        writing: Option<Writing>,
    ) -> Option<AreaIndex> {
        let opened = self.publications.open(slot, keep, writing);
        opened.map_err(|publication| self.end_publication(publication)).ok()
    }

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
    fn end_publication(&mut self, publication: Publication) {
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
        let is_writing = |publication: &Publication| is_writing(signals, slots, publication);
        for publication in self.publications.take_written(is_writing) {
            self.free(publication.slot, publication.keep);
        }
    }

    /// Gives up a frame that is not published: its slot is in use, and its user data kept, until
    /// the work that writes it is done.
    pub fn abandon(&mut self, frame: &mut Frame<'_>) {
        let held: Box<dyn Any + Send> = Box::new((frame.slot.clone(), frame.keep.take()));
        let (recorded, gpu) = match (frame.written, &self.config.gpu) {
            _ if frame.slot.as_ptr().is_some() || self.slots.is_adopted(frame.slot) => {
                return self.deferred.drop_user_data([held]);
            }
            (Written::On(stream), Some(gpu)) => (self.pinned.record(stream, gpu), stream.context().clone()),
            (Written::Somewhere, Some(gpu)) => (self.pinned.record_context(gpu), gpu.clone()),
            (Written::Cpu, _) | (_, None) => return self.deferred.drop_user_data([held]),
        };
        match recorded {
            Ok(written) => {
                self.polling.want(self.demanded_urgency());
                self.pinned.hold(written, held);
            }
            // The work of the context is found later, after a capture of the stream, and the frame
            // dropped, with the state unlocked. Work from before the capture may be under way.
            Err(_) => self.deferred.drop_resource(DropWhenIdle::new(&gpu, held)),
        }
    }
}

/// Returns whether the work that writes a publication is under way. Adopted memory is its owner's,
/// who orders the next write behind this one.
fn is_writing(signals: &Signals, slots: &Slots, publication: &Publication) -> bool {
    let is_under_way = |writing: &Writing| signals.is_writing(writing);
    publication.writing.as_ref().is_some_and(is_under_way) && !slots.is_adopted(&publication.slot)
}
