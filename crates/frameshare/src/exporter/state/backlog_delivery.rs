// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backlogs: frames of lossless readers without credit wait here, so that no other reader waits.
//!
//! A frame joins the backlog of each full lossless reader. The frames of a backlog are the newest
//! ones of the stream, so all backlogs together hold as many slots as the longest does. Frames
//! leave in order, as credit returns.

use super::State;
use crate::{
    exporter::{
        config::SlowReaders,
        frame::Unit,
        link::{Backlog, Ending, Link, WaitingFrame, Weight},
        slot::Slot,
    },
    sys::{Words, monotonic_ns},
};
use frameshare_cuda::context::{Context, Current};
use frameshare_protocol::{EntryIndex, message::Reason};
use frameshare_queue::Producer;
use std::{sync::Arc, time::Instant};

/// Frames that wait for credit, and the bytes of their slots and of their oversized metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    pub frames: u32,
    pub bytes: u64,
}

impl State {
    /// Frames in backlogs. Readers of downloads get other slots than the others.
    pub fn waiting(&self) -> Total {
        let longest = |downloads| {
            let backlogs =
                self.readers.present().iter().filter(|link| link.downloads() == downloads).map(Link::backlog);
            let total = |(frames, bytes), backlog: &Backlog| {
                (backlog.frames().max(frames), backlog.frame_bytes().max(bytes))
            };
            backlogs.fold((0, 0), total)
        };
        let ((frames, bytes), (other_frames, other_bytes)) = (longest(false), longest(true));
        Total { frames: (frames + other_frames) as u32, bytes: bytes + other_bytes }
    }

    /// Returns whether a frame of this weight may join the backlog of this reader.
    fn may_wait(&self, link: &Link, frame: Weight) -> bool {
        let config = &self.config;
        if !link.is_lossless() || !config.may_queue(link.peer()) {
            return false;
        }
        let waiting = self.waiting();
        waiting.bytes + frame.bytes <= config.max_queued_bytes
            && link.backlog().has_room_for_files_of(frame)
            && (link.backlog().is_empty() || link.backlog().age(monotonic_ns()) < config.max_queued_time)
            // Its own slot counts as upstream's until it is published.
            && self.promised_slots() <= config.max_slots
    }

    /// Returns whether a lossless reader would lose a frame of this weight.
    pub fn holds_back(&self, link: &Link, frame: Weight) -> bool {
        link.is_lossless() && link.is_full() && !self.may_wait(link, frame)
    }

    /// Sets the treatment of lossless readers without credit.
    pub fn set_slow_readers(&mut self, slow_readers: SlowReaders) {
        self.config.slow_readers = slow_readers;
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
        self.slots.note_backlog(Instant::now());
        if !self.readers.present().iter().any(Link::can_deliver) {
            return;
        }
        let gpu = self.config.gpu.clone();
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
    pub(super) fn begin_earlier<'a>(&mut self, gpu: Option<&'a Arc<Context>>) -> Option<Option<Current<'a>>> {
        let current = gpu.map(|gpu| gpu.push()).transpose();
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
        if link.leases.take_published(Producer::<Words>::order_before_flags()) {
            link.wake_up();
        }
        // The service thread waits for the reader's next release, or for no further one: whichever
        // thread delivers may have taken the wake-up.
        self.waiters.note_change();
        Ok(true)
    }

    /// Makes the lease of a waiting frame one of the reader.
    fn offer_waiting(&mut self, index: usize, entry: EntryIndex, frame: &WaitingFrame) -> Result<(), Ending> {
        let publication = self.publications.get(frame.area);
        let slot = publication.map(|publication| publication.slot.clone());
        let id = frame.descriptor.slot.generation;
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
    pub(super) fn is_held(&self, slot: &Slot) -> bool {
        let is_kept = self.config.history.keeps_frames();
        slot.as_ptr().is_none() && (is_kept || self.readers.present().iter().any(Link::joins_backlog))
    }

    /// Returns whether some reader has a backlog.
    pub fn has_backlogs(&self) -> bool {
        self.readers.present().iter().any(|link| !link.backlog().is_empty())
    }

    /// Slots, or metadata areas, that are in use or must be free when they are needed: those of
    /// readers, of frames that wait, and the reserve. Upstream's slots need no area; a download
    /// needs one, and no slot beyond the credit of its readers.
    pub(super) fn promised_slots(&self) -> u32 {
        let others = self.held_upstream(self.kind()).max(self.count_downloads());
        others + self.promised_to_readers()
    }

    /// The part of them that does not depend on upstream and on downloads.
    pub(super) fn promised_to_readers(&self) -> u32 {
        self.readers.credit() + self.waiting().frames + self.reserve()
    }

    /// Slots that are needed besides those that readers lease or wait for: the frame that is being
    /// published, the next one, and the one that is kept for joining readers.
    pub fn reserve(&self) -> u32 {
        2 + u32::from(self.config.history.keeps_frames())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Endpoint, Interrupt, Policy, Wait,
        exporter::{Config, Exporter, Frame, Purpose, parts::Urgency},
        fence::{ExporterFence, FenceError, FenceState, Signals, Written},
        memory::select::Selected,
        reader::{self, Item, Reader},
    };
    use frameshare_protocol::{FenceKind, Sequence};
    use std::time::Duration;

    /// A release that stays pending.
    #[derive(Debug)]
    struct Endless;

    impl ExporterFence for Endless {
        fn kind(&self) -> FenceKind {
            FenceKind::Timeline
        }

        fn signal_ready(&mut self, _: EntryIndex, _: Sequence, _: &mut Signals) -> Result<(), FenceError> {
            Ok(())
        }

        fn poll_released(&mut self, _: EntryIndex, _: Sequence) -> Result<FenceState, FenceError> {
            Ok(FenceState::Pending)
        }
    }

    /// A waiting thread may take the wake-up of a release, find its fence pending, and end its wait
    /// before the fence does.
    #[test]
    fn pending_release_before_backlog_is_polled() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let config = Config::default().slow_readers(SlowReaders::QueueThenWait);
        let exporter = Exporter::bind(&endpoint, config.fence_timeout(Duration::MAX), drop).unwrap();
        let interrupt = Interrupt::new().unwrap();
        let config = reader::Config::default().policy(Policy::Lossless).max_held(1);
        let mut reader = Reader::connect(&endpoint, config, &interrupt).unwrap();
        for _ in 0..2 {
            let slot = exporter.acquire(1000, Purpose::Copy, Wait::No).unwrap();
            exporter.publish(Frame::new(&slot, 1000, Written::Cpu), Wait::Forever).unwrap();
        }
        let polls_at_once = |has_released: bool| {
            exporter.locked(|state| {
                assert!(state.has_backlogs() && state.readers[0].leases.vacant().is_none());
                state.polling.take_order();
                state.polling.begin_turn(Urgency::None);
                state.reclaim();
                assert_eq!(state.polling.fences_pending(), has_released);
                state.polling.take_order().at_once
            })
        };
        exporter.locked(|state| {
            let choice = Selected { kind: FenceKind::Timeline, why: String::new() };
            state.readers[0].leases.set_fence(Box::new(Endless), choice);
            state.readers[0].leases.fence_all();
        });
        assert!(!polls_at_once(false));
        let frame = reader.next(Some(Duration::from_secs(60)), &interrupt).unwrap();
        assert!(matches!(frame, Some(Item::Frame(_))), "{frame:?}");
        drop(frame);
        assert!(polls_at_once(true));
    }
}
