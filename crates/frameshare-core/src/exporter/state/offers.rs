// SPDX-License-Identifier: MIT OR Apache-2.0

//! Offers: one publication to each reader that has room or can make some.

use super::State;
use crate::exporter::{
    ending::Ending,
    link::{Link, Packet, WaitingFrame, Weight},
    now::Now,
    parts::Downloads,
    system::{Gpu, Signals, Slot, System},
    unit::Unit,
    unpublished::{NotPublished, Unpublished},
};
use frameshare_protocol::{AreaIndex, Descriptor, EntryIndex, MemoryKind, Sequence, SlotId};
use frameshare_queue::Producer;

/// A publication, as it is offered to readers.
pub(super) struct Offer<'a, S: System> {
    pub slot: &'a S::Slot,
    pub area: AreaIndex,
    pub sequence: Sequence,
    /// Metadata that exceeds the areas of the publication.
    pub oversized: Option<&'a Packet<S::Attachment>>,
    /// It is a download: only for readers of those.
    pub is_download: bool,
    /// Only lossless readers get it.
    pub is_late: bool,
    pub unit: Unit,
}

impl<S: System> State<S> {
    /// Returns the reason why no reader may get a frame, if there is one.
    #[inline]
    pub fn refusal(&self, unpublished: &Unpublished<'_, S>) -> Option<Box<NotPublished<S>>> {
        if self.closed {
            return Some(NotPublished::Closed.into());
        }
        if self.slots.is_retired(unpublished.slot) {
            return Some(NotPublished::Retired.into());
        }
        let plane = self.announcement.overlapping_plane(&unpublished.descriptor)?;
        Some(NotPublished::OverlappingRows { plane }.into())
    }

    /// Publishes a frame to every reader that has room or can make some.
    ///
    /// # Errors
    /// [`NotPublished::Gpu`] and [`NotPublished::Closed`] if the GPU has failed; with the first one
    /// the frame was not handed out.
    pub fn hand_out(
        &mut self,
        unpublished: &mut Unpublished<'_, S>,
    ) -> Result<Sequence, Box<NotPublished<S>>> {
        if S::Signals::is_complete(unpublished.written) && unpublished.slot.is_in_host() {
            return self.hand_out_behind(None, unpublished);
        }
        // Makes the context current once for all driver calls of the frame. A host frame needs
        // none.
        let on_gpu = !unpublished.slot.is_in_host();
        let gpu = self.system.gpu().filter(|_| on_gpu).cloned();
        let current = gpu.as_ref().map(Gpu::enter).transpose();
        let begun = current.and_then(|current| Ok((current, self.signals.begin(unpublished.written)?)));
        let (_current, writing) = begun.map_err(NotPublished::Gpu)?;
        self.hand_out_behind(writing, unpublished)
    }

    /// Hands out a frame behind the work that writes it.
    fn hand_out_behind(
        &mut self,
        writing: Option<<S::Signals as Signals>::Writing>,
        unpublished: &mut Unpublished<'_, S>,
    ) -> Result<Sequence, Box<NotPublished<S>>> {
        unpublished.is_handed_out = true;
        let Unpublished { slot, unit, descriptor, content, target, keep, .. } = unpublished;
        let (slot, unit, on_gpu) = (*slot, *unit, !slot.is_in_host());
        let sequence = self.publications.begin();
        descriptor.sequence = sequence;
        self.go_on();
        if unit != Unit::Whole || self.kept.has_units() {
            self.keep_unit(unit, descriptor, content.take());
        }
        self.await_returns(keep.is_some());
        // Cannot fail: there are as many areas as slots, and the leases of readers, of frames that
        // wait, of the kept frame and of downloads are fewer than slots.
        let Some(area) = self.open_publication(slot.clone(), keep.take(), writing) else {
            self.skip_undelivered();
            return Ok(sequence);
        };
        descriptor.area = area;
        let now = S::now_ns();
        self.note_arrival(unpublished.arrived, descriptor.pts, now);
        let mut oversized = None;
        if !unpublished.metadata.is_empty() {
            (descriptor.metadata, oversized) = self.store_metadata(area, sequence, unpublished.metadata);
        }
        self.offer_all(&Offer {
            slot,
            area,
            sequence,
            oversized: oversized.as_ref(),
            is_download: false,
            is_late: unpublished.late_after.is_some_and(|time| now > time),
            unit,
        });
        if on_gpu {
            self.signal_offered(slot, area)?;
        }
        self.count_dma_buf(slot);
        descriptor.published = S::now_ns();
        self.publications.note_time(descriptor.published);
        self.publish_offered(descriptor);
        if unit != Unit::Whole {
            self.forget_last();
        } else if self.limits.keeps_frames {
            self.keep_last(slot, area, descriptor, oversized.clone());
        }
        if on_gpu && let Some(to) = target.take_if(|_| self.wants_download(slot)) {
            let (descriptor, bytes) = (descriptor.clone(), slot.size());
            self.start_download(slot, to, WaitingFrame { area, descriptor, oversized, bytes }, false);
        }
        self.skip_undelivered();
        self.end_lease(area);
        Ok(sequence)
    }

    /// Signals the timeline values of all readers that are offered a frame on the GPU, in one call;
    /// the descriptors follow the signals. If the GPU has failed, closes the stream and ends the
    /// publisher's lease.
    fn signal_offered(&mut self, slot: &S::Slot, area: AreaIndex) -> Result<(), Box<NotPublished<S>>> {
        let held = if self.is_held(slot) { self.signals.hold() } else { Ok(()) };
        let writing = self.publications.writing_mut(area);
        held.and_then(|()| self.signals.flush(writing)).map_err(|error| {
            self.close_without_gpu(&error);
            self.end_lease(area);
            NotPublished::Closed.into()
        })
    }

    /// Returns whether every reader can lease one more frame, without polling for releases.
    pub fn has_room(&self) -> bool {
        self.downloads.is_none() && !self.readers.present().iter().any(Link::is_full)
    }

    /// Returns whether a publication of this weight, in this slot, would cost a lossless reader a
    /// frame now.
    pub fn would_lose(&mut self, frame: Weight, slot: SlotId) -> bool {
        (self.awaited, self.awaited_slot) = (frame, Some(slot));
        let in_host = self.kind() == MemoryKind::Host;
        let behind = if in_host { self.is_downloading() } else { !self.may_download() };
        let loses = |link: &Link<S>| {
            (link.is_lossless() && link.downloads() && behind)
                || ((in_host || !link.downloads()) && self.holds_back(link, frame))
        };
        self.readers.present().iter().any(loses)
    }

    /// Leases a frame to every reader that gets it where it is and has room or can make some. GPU
    /// frames are not for readers of downloads, and downloads are for those only.
    pub(super) fn offer_all(&mut self, offer: &Offer<'_, S>) {
        let in_host = offer.slot.is_in_host();
        // A frame that is published straight from host memory must not overtake downloads under
        // way.
        let passes = !offer.is_download && self.is_downloading();
        let (mut index, now) = (0, Now::default());
        while index < self.readers.present().len() {
            let link = &mut self.readers[index];
            let gets = if link.downloads() { in_host && !passes } else { !offer.is_download };
            if !(gets && link.may_get(offer.sequence)) {
                index += 1;
                continue;
            }
            match self.offer(index, offer, &now) {
                Ok(()) => index += 1,
                Err(ending) => self.drop_link(index, &ending),
            }
        }
    }

    /// Publishes the offered frame to all readers.
    pub fn publish_offered(&mut self, descriptor: &mut Descriptor) {
        self.readers.present_mut().iter_mut().for_each(|link| link.publish(descriptor));
        // One for all readers: it waits until the writes to all their queues are done.
        let ordered = Producer::<S::Page>::order_before_flags();
        for link in self.readers.present_mut() {
            if link.leases.take_published(ordered) {
                link.wake_up();
            }
        }
    }

    /// Marks undelivered frames as lost, except for readers of downloads, which wait for downloads
    /// under way and for the frames after them: a frame that was reported lost is never delivered.
    pub fn skip_undelivered(&mut self) {
        let on_its_way = self.downloads.as_ref().and_then(Downloads::first);
        let behind = |link: &&mut Link<S>| link.leases.next() != self.publications.next();
        for link in self.readers.present_mut().iter_mut().filter(behind) {
            let waits = link.backlog().first().map(|frame| frame.descriptor.sequence);
            let next = waits.or(on_its_way.filter(|_| link.downloads())).unwrap_or(self.publications.next());
            if link.leases.lose_before(next) {
                link.wake_up();
            }
        }
    }

    /// Leases a frame to one reader, if it has room or can make some.
    fn offer(&mut self, index: usize, offer: &Offer<'_, S>, now: &Now<S>) -> Result<(), Ending> {
        let &Offer { slot, area, sequence, oversized, unit, .. } = offer;
        let link = &mut self.readers[index];
        if offer.is_late && !link.is_lossless() {
            link.miss(unit, sequence, now);
            return Ok(());
        }
        if !link.may_start(unit, sequence, now)? {
            return Ok(());
        }
        if link.is_lossless() && link.is_full() {
            // There is room for it: a frame that would be lost is not published.
            link.join_backlog(area, slot.size(), oversized.cloned());
            // Has the service thread wait for the reader.
            if link.backlog().is_empty() {
                self.waiters.note_change();
            }
            self.publications.add_lease(area);
            return Ok(());
        }
        if !link.backlog().is_empty() {
            // A kept frame that has not left yet is outdated.
            let outdated = link.skip_backlog()?;
            self.end_leases(outdated);
        }
        let room = self.make_room(index, unit, now)?;
        let generation = self.slots.generation(slot.id().generation);
        let link = &mut self.readers[index];
        let (Some(entry), Some(generation)) = (room, generation) else {
            link.leases.note_loss(unit, now);
            return Ok(());
        };
        // Room may have taken units that this one depends on.
        if !link.may_start(unit, sequence, now)? {
            return Ok(());
        }
        let kind = generation.kind;
        link.introduce(slot, kind, generation.is_adopted(), generation.pool())?;
        if let Some(message) = oversized {
            link.send_packet(message)?;
        }
        link.offer(entry, area, sequence, unit, kind, &mut self.signals)?;
        self.publications.add_lease(area);
        Ok(())
    }

    /// Makes room for a lease in a link, by its policy, and reclaims the areas of leases that ended
    /// for it.
    fn make_room(&mut self, index: usize, unit: Unit, now: &Now<S>) -> Result<Option<EntryIndex>, Ending> {
        let mut ended = Vec::new();
        let vacancy = self.readers[index].vacate(unit, &mut ended, now);
        if !ended.is_empty() {
            self.end_leases(ended);
        }
        vacancy
    }
}
