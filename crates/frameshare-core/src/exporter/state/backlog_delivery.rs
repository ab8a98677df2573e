// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backlogs: frames of lossless readers without credit wait here, so that no other reader waits.
//!
//! A frame joins the backlog of each full lossless reader. The frames of a backlog are the newest
//! ones of the stream, so all backlogs together hold as many slots as the longest does. Frames
//! leave in order, as credit returns.

use super::State;
use crate::exporter::{
    ending::Ending,
    limits::SlowReaders,
    link::{Backlog, Link, WaitingFrame, Weight},
    system::{Gpu, Signals, Slot, System},
    unit::Unit,
};
use frameshare_protocol::{EntryIndex, MemoryKind, message::Reason};
use frameshare_queue::Producer;

/// Frames that wait for credit, and the bytes of their slots and of their oversized metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub frames: u32,
    pub bytes: u64,
}

impl<S: System> State<S> {
    /// Frames in backlogs. Readers of downloads get other slots than the others.
    pub fn waiting(&self) -> Total {
        let longest = |downloads| {
            let backlogs =
                self.readers.present().iter().filter(|link| link.downloads() == downloads).map(Link::backlog);
            let total = |(frames, bytes), backlog: &Backlog<S::Attachment>| {
                (backlog.frames().max(frames), backlog.frame_bytes().max(bytes))
            };
            backlogs.fold((0, 0), total)
        };
        let ((frames, bytes), (other_frames, other_bytes)) = (longest(false), longest(true));
        Total { frames: (frames + other_frames) as u32, bytes: bytes + other_bytes }
    }

    /// Returns whether a frame of this weight may join the backlog of this reader.
    fn may_wait(&self, link: &Link<S>, frame: Weight) -> bool {
        let limits = &self.limits;
        let may_queue = limits.slow_readers != SlowReaders::Wait && limits.max_queued_bytes > 0;
        if !link.is_lossless() || !may_queue || !link.peer().may_queue {
            return false;
        }
        let waiting = self.waiting();
        waiting.bytes + frame.bytes <= limits.max_queued_bytes
            && link.backlog().has_room_for_files_of(frame)
            && (link.backlog().is_empty() || link.backlog().age(S::now_ns()) < limits.max_queued_time)
            // Its own slot counts as upstream's until it is published.
            && self.promised_slots() <= limits.max_slots
            && self.leaves_download(link)
    }

    /// Returns whether frames cannot wait for credit before upstream returns slots, which sends no
    /// notification.
    pub fn awaits_upstream(&self) -> bool {
        self.limits.slow_readers != SlowReaders::Wait
            && self.promised_slots() > self.limits.max_slots
            && self.held_upstream_besides(self.kind(), self.awaited_slot) > 0
    }

    /// Returns whether the frame that is being published can be downloaded for lossless readers
    /// although it joins the backlog of this reader.
    fn leaves_download(&self, link: &Link<S>) -> bool {
        link.downloads()
            || self.kind() == MemoryKind::Host
            || !self.must_download()
            || self.may_download_beside(1)
    }

    /// Returns whether a lossless reader would lose a frame of this weight.
    pub fn holds_back(&self, link: &Link<S>, frame: Weight) -> bool {
        link.is_lossless() && link.is_full() && !self.may_wait(link, frame)
    }

    /// Sets the treatment of lossless readers without credit.
    pub fn set_slow_readers(&mut self, slow_readers: SlowReaders) {
        self.limits.slow_readers = slow_readers;
        self.waiters.note_change();
    }

    /// Asks readers that frames wait for to send a wake-up when they release one, and checks once
    /// more.
    pub fn announce_waits(&mut self) {
        let mut any = false;
        for link in self.readers.present().iter().filter(|link| !link.backlog().is_empty()) {
            link.announce_wait();
            any = true;
        }
        if any {
            self.reclaim();
        }
    }

    /// Delivers frames of backlogs to readers that have credit.
    pub fn deliver_backlogs(&mut self) {
        if self.readers.present().iter().all(|link| link.backlog().is_empty()) {
            return;
        }
        self.slots.note_backlog(S::now());
        if !self.readers.present().iter().any(Link::can_deliver) {
            return;
        }
        let gpu = self.system.gpu().cloned();
        let Some(_current) = self.begin_earlier(gpu.as_ref()) else { return };
        let mut index = 0;
        while index < self.readers.present().len() {
            match self.deliver_waiting(index) {
                Ok(true) => {}
                Ok(false) => index += 1,
                Err(ending) => self.drop_link(index, &ending),
            }
        }
    }

    /// Makes the exporter's context current, if it has one, and begins signals of frames that were
    /// published before. If the GPU has failed, closes the stream and returns `None`.
    pub(super) fn begin_earlier<'a>(
        &mut self,
        gpu: Option<&'a S::Gpu>,
    ) -> Option<Option<<S::Gpu as Gpu>::Current<'a>>> {
        let current = gpu.map(Gpu::enter).transpose();
        let begun = current.and_then(|current| self.signals.begin_earlier().map(|()| current));
        begun.map_err(|error| self.close_without_gpu(&error)).ok()
    }

    /// Delivers the next frame of a reader's backlog, if there is room. Returns false if not.
    fn deliver_waiting(&mut self, index: usize) -> Result<bool, Ending> {
        let Some((entry, mut frame)) = self.readers[index].next_waiting()? else { return Ok(false) };
        let offered = self.offer_waiting(index, entry, &frame);
        if offered.is_err() {
            self.end_lease(frame.area);
        }
        offered?;
        if let Err(error) = self.signals.flush(None) {
            return Err(Ending::new(Reason::Failed, format!("the exporter's GPU has failed: {error}")));
        }
        let link = &mut self.readers[index];
        link.publish(&mut frame.descriptor);
        if link.leases.take_published(Producer::<S::Page>::order_before_flags()) {
            link.wake_up();
        }
        // The service thread waits for the reader's next release, or for no further one: whichever
        // thread delivers may have taken the wake-up.
        self.waiters.note_change();
        Ok(true)
    }

    /// Makes the lease of a waiting frame one of the reader.
    fn offer_waiting(
        &mut self,
        index: usize,
        entry: EntryIndex,
        frame: &WaitingFrame<S::Attachment>,
    ) -> Result<(), Ending> {
        let publication = self.publications.get(frame.area);
        let slot = publication.map(|publication| publication.slot.clone());
        let id = frame.descriptor.slot.generation;
        self.count_retired(index, id)?;
        let generation = self.slots.generation(id);
        let (Some(slot), Some(generation)) = (slot, generation) else {
            return Err(Ending::new(Reason::Failed, "the exporter has lost a frame that waited"));
        };
        let kind = generation.kind;
        let link = &mut self.readers[index];
        link.introduce(&slot, kind, generation.is_adopted(), generation.pool())?;
        if let Some(message) = &frame.oversized {
            link.send_now(message)?;
        }
        // Frames of a backlog are never revoked for others: what depends on them does not matter.
        link.offer(entry, frame.area, frame.descriptor.sequence, Unit::Whole, kind, &mut self.signals)
    }

    /// Returns whether a frame in this slot is published to some readers later, and is written by a
    /// GPU.
    pub fn is_held(&self, slot: &S::Slot) -> bool {
        let is_kept = self.limits.keeps_frames;
        !slot.is_in_host() && (is_kept || self.readers.present().iter().any(Link::joins_backlog))
    }

    /// Returns whether some reader has a backlog.
    pub fn has_backlogs(&self) -> bool {
        self.readers.present().iter().any(|link| !link.backlog().is_empty())
    }

    /// Slots, or metadata areas, that are in use or must be free when they are needed: those of
    /// readers, of frames that wait, and the reserve. Upstream's slots need no area; a download
    /// needs one, and no slot beyond the credit of its readers.
    pub fn promised_slots(&self) -> u32 {
        let others = self.held_upstream(self.kind()).max(self.count_downloads());
        others + self.promised_to_readers()
    }

    /// The part of them that does not depend on upstream and on downloads.
    pub fn promised_to_readers(&self) -> u32 {
        self.readers.credit() + self.waiting().frames + self.reserve()
    }

    /// Slots that are needed besides those that readers lease or wait for: the frame that is being
    /// published, the next one, and the one that is kept for joining readers.
    pub fn reserve(&self) -> u32 {
        2 + u32::from(self.limits.keeps_frames)
    }
}
