// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that join later: they get the last frame, or the units since the last key unit.

use super::State;
use crate::exporter::{
    link::{Packet, Start, WaitingFrame},
    notice::Notice,
    parts::{Content, KeptUnits},
    system::{Slot, System},
    unit::Unit,
};
use frameshare_protocol::{AreaIndex, Descriptor, Sequence};
use std::{any::Any, sync::Arc};

impl<S: System> State<S> {
    /// Sets whether the last frame is kept for readers that join later.
    pub fn set_history(&mut self, keeps_frames: bool) {
        self.limits.keeps_frames = keeps_frames;
        if !keeps_frames {
            self.forget_last();
        }
        // The reserve changes, and with it the room for frames that wait.
        self.waiters.note_change();
    }

    /// Keeps the frame that has just been published, in place of the last one. Adopted memory is
    /// its owner's, who may need it soon.
    pub fn keep_last(
        &mut self,
        slot: &S::Slot,
        area: AreaIndex,
        descriptor: &Descriptor,
        oversized: Option<Packet<S::Attachment>>,
    ) {
        let keeps = !self.slots.is_adopted(slot);
        let frame = || WaitingFrame { area, descriptor: descriptor.clone(), oversized, bytes: slot.size() };
        let last = self.kept.replace_frame(keeps.then(frame));
        self.end_leases(last);
        if keeps {
            self.publications.add_lease(area);
        }
    }

    /// Forgets the last frame: it is no longer one of the present stream.
    pub fn forget_last(&mut self) {
        let last = self.kept.replace_frame(None);
        self.end_leases(last);
    }

    /// Returns whether the publication in this area has no lease but that of the kept frame: it
    /// ends with the next frame, and no polling ends it before.
    pub fn is_only_kept(&self, area: AreaIndex) -> bool {
        self.publications.has_one_lease(area) && self.kept.has_frame_in(area)
    }

    /// Returns the last frame for a joining reader, if the stream is slow. A reader that
    /// `downloads` frames gets one in GPU memory by a download into `target`, or by the one under
    /// way, unless the GPU is behind with earlier ones.
    pub fn last_for(
        &self,
        downloads: bool,
        target: Option<&S::Slot>,
    ) -> Option<&WaitingFrame<S::Attachment>> {
        let last = self.slow_last()?;
        let is_downloadable = || match self.newest_download() {
            Some(under_way) => under_way == last.descriptor.sequence,
            None => target.is_some_and(|target| target.size() >= last.descriptor.size),
        };
        (!downloads || self.is_in_host(last) || is_downloadable()).then_some(last)
    }

    /// Returns the size in bytes of the last frame, if a joining reader would get it by a download.
    pub fn last_to_download(&self) -> Option<u64> {
        let last = self.slow_last().filter(|last| !self.is_in_host(last))?;
        Some(last.descriptor.size)
    }

    /// Delivers the last frame to a reader that has joined: as it is, or by a download into
    /// `target`.
    pub fn deliver_last(
        &mut self,
        joining: usize,
        last: WaitingFrame<S::Attachment>,
        target: Option<S::Slot>,
    ) {
        if self.readers[joining].downloads() && !self.is_in_host(&last) {
            if let Some(target) = target.filter(|_| self.newest_download().is_none()) {
                self.download_last(last, target);
            }
            return;
        }
        let (id, generation) = (self.readers[joining].info.id, last.descriptor.slot.generation);
        self.publications.add_lease(last.area);
        self.readers[joining].push_backlog(last);
        self.deliver_backlogs();
        self.retire_for(id, generation);
    }

    fn slow_last(&self) -> Option<&WaitingFrame<S::Attachment>> {
        self.kept.frame_after(self.limits.history_pause, S::now_ns())
    }

    fn is_in_host(&self, frame: &WaitingFrame<S::Attachment>) -> bool {
        let publication = self.publications.get(frame.area);
        publication.is_some_and(|publication| publication.slot.is_in_host())
    }

    /// Returns whether a copy of a unit will be kept.
    pub fn keeps_unit(&self, unit: Unit, bytes: u64, metadata: usize) -> bool {
        self.kept.has_room(unit, bytes, metadata, self.limits.max_gop_bytes)
    }

    /// Keeps the copy of a unit that is being published; without one the kept GOP ends.
    pub fn keep_unit(&mut self, unit: Unit, descriptor: &Descriptor, content: Option<Arc<Content>>) {
        if self.kept.note(unit) {
            self.await_key_unit();
        }
        let limit = self.limits.max_gop_bytes;
        let dropped = self.kept.keep_unit(descriptor, content, limit, S::now_ns());
        self.drop_units(dropped);
    }

    /// Drops the kept units: readers that join get none of them.
    pub fn forget_units(&mut self) {
        let units = self.kept.drop_units();
        self.drop_units(units);
    }

    /// Drops the kept units: the next unit belongs to another sequence of units.
    pub fn end_units(&mut self) {
        let units = self.kept.end_units();
        self.drop_units(units);
    }

    fn drop_units(&mut self, units: KeptUnits) {
        if !units.is_empty() {
            self.deferred.drop_user_data([Box::new(units) as Box<dyn Any + Send>]);
        }
    }

    /// The sequence number of the last key unit, if a joining reader gets the units since then: one
    /// that `is_trusted` with memory and takes so many bytes.
    pub fn kept_from(&self, is_trusted: bool, max_gop_bytes: u64) -> Option<Sequence> {
        let gets = is_trusted && self.kept.bytes() <= max_gop_bytes;
        self.kept.begin_of_units().filter(|_| gets)
    }

    /// Returns the kept units from `from` on.
    pub fn kept_units(&self, from: Sequence) -> KeptUnits {
        self.kept.units_from(from)
    }

    /// Decides where a joining reader starts that gets no kept units.
    pub fn start_without_kept_units(&mut self, is_own: bool) -> Start {
        if !self.kept.has_units() {
            return Start::AtOnce;
        }
        self.ask_owner(is_own);
        Start::join(S::now())
    }

    /// Sends kept units to the reader that joined last, if it is still there.
    pub fn send_kept_units(&mut self, id: u64, packets: &[Packet<S::Attachment>]) {
        if packets.is_empty() {
            return;
        }
        self.each_link(|link| {
            if link.info.id == id {
                link.leases.note_kept_units();
                packets.iter().try_for_each(|packet| link.send_packet(packet))?;
            }
            Ok(())
        });
    }

    /// Handles a reader's request for a key unit. One that still reads kept units needs none.
    pub fn request_key_unit(&mut self, id: u64) {
        let Some(index) = self.readers.position(id) else { return };
        let link = &mut self.readers[index];
        match link.leases.reads_kept_units() {
            Ok(true) => {}
            Ok(false) => {
                let is_own = link.peer().is_own_or_root;
                self.ask_owner(is_own);
            }
            Err(ending) => self.drop_link(index, &ending),
        }
    }

    /// Has every reader wait for a key unit: the first unit of the stream depends on units before
    /// it, which no reader has got. One with a backlog gets every unit.
    fn await_key_unit(&mut self) {
        let (mut is_own, now) = (false, S::now());
        for link in self.readers.present_mut().iter_mut().filter(|link| link.backlog().is_empty()) {
            link.leases.start().await_key(now);
            is_own |= link.peer().is_own_or_root;
        }
        self.ask_owner(is_own);
    }

    /// Asks the owner for a key unit of an encoded stream, for a reader of its own user or of root.
    fn ask_owner(&mut self, is_own: bool) {
        if is_own && self.kept.asks_for_key(S::now_ns()) {
            self.reports.tell(Notice::KeyUnitWanted);
        }
    }
}
