// SPDX-License-Identifier: MIT OR Apache-2.0

//! Private state of an exporter: all decisions are made from it.

mod adopt;
mod backlog_delivery;
mod control;
mod credit;
mod disconnect;
mod dma_bufs;
mod downloads;
mod ended_publications;
mod joining;
mod late_joiners;
mod metadata;
mod offers;
mod publish;
mod retirement;
mod slot_acquisition;
mod slow_readers;
mod stats;
mod trimming;
mod unlocking;
mod upstream_buffers;

pub use joining::Left;
pub use publish::Attempt;
pub use trimming::SPARE;
pub use unlocking::{Rest, Unlocked};

use super::{
    ending::Ending,
    limits::Limits,
    link::{Link, Weight},
    now::Now,
    parts::{
        Announcement, Arrivals, Deferred, DeviceUse, Downloads, Kept, Pinned, Polling, Publications, Readers,
        Reports, Slots, Urgency, WaiterId, Waiters,
    },
    system::{System, Waiter},
};
use crate::selected::Selected;
use frameshare_protocol::{AreaIndex, MemoryKind, Sequence, SlotId};
use std::{any::Any, mem, time::Instant};

/// The findings of one turn of the service thread.
pub struct Turn {
    /// A lease ended.
    pub progress: bool,
    /// The urgency of the polls until the next turn.
    pub watch: Urgency,
    /// Something outlives the stream: readers' imports, or resources of GPU work.
    pub has_more_to_do: bool,
    /// Time of the next check for unused slots, if there is one.
    pub trims_at: Option<Instant>,
    /// Resources to be dropped with the state unlocked. That may wait for a GPU.
    pub trash: Vec<Box<dyn Any + Send>>,
}

/// State of an exporter: all its decisions are made from it.
pub struct State<S: System> {
    system: S,
    limits: Limits,
    signals: S::Signals,
    slots: Slots<S>,
    readers: Readers<S>,
    publications: Publications<S>,
    arrivals: Arrivals,
    announcement: Announcement<S::Attachment, S::Video>,
    kept: Kept<S::Attachment>,
    closed: bool,
    /// The failure of the engine that closed the stream.
    failure: Option<String>,
    reports: Reports,
    waiters: Waiters<S::Waiter>,
    polling: Polling,
    /// The weight of the frame that waits for readers.
    awaited: Weight,
    /// The slot of that frame.
    awaited_slot: Option<SlotId>,
    /// Downloads for readers that get host memory although the stream's frames are on a GPU.
    downloads: Option<Downloads<S>>,
    dma_bufs: DeviceUse<S>,
    /// Resources that GPU work still uses.
    pinned: Pinned<S::Work>,
    /// Areas whose leases a poll has found ended: empty between polls, which share its memory.
    ended_leases: Vec<AreaIndex>,
    deferred: Deferred,
    /// Readers whose links were released since the state was locked, to be woken.
    released_sleepers: Option<S::Sleepers>,
}

impl<S: System> State<S> {
    /// A stream without readers, whose frames are in memory of this kind.
    pub fn new(system: S, limits: Limits, memory: Selected<MemoryKind>, signals: S::Signals) -> Self {
        Self {
            system,
            slots: Slots::new(memory),
            signals,
            publications: Publications::new(limits.max_slots),
            limits,
            readers: Readers::default(),
            arrivals: Arrivals::default(),
            announcement: Announcement::default(),
            kept: Kept::default(),
            closed: false,
            failure: None,
            reports: Reports::default(),
            polling: Polling::default(),
            awaited: Weight::default(),
            awaited_slot: None,
            downloads: None,
            dma_bufs: DeviceUse::default(),
            pinned: Pinned::default(),
            ended_leases: Vec::new(),
            waiters: Waiters::default(),
            deferred: Deferred::default(),
            released_sleepers: None,
        }
    }

    /// Applies `f` to every link, and ends links for which it fails.
    pub fn each_link(&mut self, mut f: impl FnMut(&mut Link<S>) -> Result<(), Ending>) {
        let mut index = 0;
        while index < self.readers.present().len() {
            match f(&mut self.readers[index]) {
                Ok(()) => index += 1,
                Err(ending) => self.drop_link(index, &ending),
            }
        }
    }

    /// Ends the leases that readers have released, and retires unused generations. Returns true if
    /// a lease ended.
    pub fn reclaim(&mut self) -> bool {
        let mut ended = mem::take(&mut self.ended_leases);
        let mut pending = false;
        let timeout = self.limits.fence_timeout;
        self.each_link(|link| {
            pending |= link.leases.collect_released(&mut ended, timeout, &Now::<S>::default())?;
            Ok(())
        });
        if !self.readers.draining().is_empty() {
            pending |= self.reclaim_from_draining(&mut ended);
        }
        self.polling.set_fences_pending(pending);
        if self.readers.all().any(|link| link.outbox.has_spent()) {
            self.drop_spent();
        }
        let progress = !ended.is_empty();
        self.end_leases(ended.drain(..));
        self.ended_leases = ended;
        if !self.publications.unwritten().is_empty() {
            self.collect_written();
        }
        if self.dma_bufs.has_unsettled() {
            self.collect_dma_bufs();
        }
        if !self.pinned.is_empty() {
            for (work, what) in self.pinned.collect() {
                self.system.recycle(work);
                self.deferred.drop_user_data([what]);
            }
        }
        if self.downloads.is_some() {
            self.deliver_downloads();
        }
        self.deliver_backlogs();
        if pending && self.has_backlogs() {
            // No notification follows, and the thread that took the one of the release may leave.
            self.polling.want(Urgency::Close);
        }
        if self.slots.has_old() || self.closed {
            self.retire();
        }
        progress
    }

    /// Has memory that sent messages referred to dropped by the service thread: that may wait for a
    /// GPU.
    fn drop_spent(&mut self) {
        let links = self.readers.all_mut();
        links
            .flat_map(|link| link.outbox.take_spent())
            .for_each(|memory| self.deferred.drop_resource(memory));
    }

    /// Appends the areas of leases that readers without further frames have ended. Returns true if
    /// a release fence of theirs is pending.
    fn reclaim_from_draining(&mut self, ended: &mut Vec<AreaIndex>) -> bool {
        let mut pending = false;
        for mut link in self.readers.take_draining() {
            let now = &Now::<S>::default();
            match link.leases.collect_released(ended, self.limits.fence_timeout, now) {
                Ok(fences) if !link.leases.is_empty() || self.awaits(&link) || link.is_flushing(now) => {
                    pending |= fences;
                    self.readers.drain(link);
                }
                _ => self.release_link(link),
            }
        }
        pending
    }

    /// Returns whether a publication has to poll readers: the acquisition of its slot did not.
    pub fn needs_poll(&mut self) -> bool {
        self.polling.publication_polls()
    }

    /// Drops `what` when this work is done.
    pub fn drop_after(&mut self, work: S::Work, what: Box<dyn Any + Send>) {
        self.polling.want(self.demanded_urgency());
        self.pinned.hold(work, what);
    }

    /// Returns whether something outlives the stream: readers' imports, or resources of GPU work.
    pub fn has_more_to_do(&self) -> bool {
        !self.readers.draining().is_empty()
            || !self.pinned.is_empty()
            || !self.publications.unwritten().is_empty()
            || self.dma_bufs.has_unsettled()
    }

    /// Returns whether GPU work is under way whose completion sends no notification.
    pub fn gpu_is_busy(&self) -> bool {
        self.polling.fences_pending()
            || !self.pinned.is_empty()
            || !self.publications.unwritten().is_empty()
            || self.is_downloading()
    }

    /// The system and the GPU.
    pub fn system(&self) -> &S {
        &self.system
    }

    /// The same, to be changed.
    pub fn system_mut(&mut self) -> &mut S {
        &mut self.system
    }

    /// The limits of the stream.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The signals of frames.
    pub fn signals_mut(&mut self) -> &mut S::Signals {
        &mut self.signals
    }

    /// The slots of the stream.
    pub fn slots(&self) -> &Slots<S> {
        &self.slots
    }

    /// The same, to be changed.
    pub fn slots_mut(&mut self) -> &mut Slots<S> {
        &mut self.slots
    }

    /// The format and the events of the stream.
    pub fn announcement(&self) -> &Announcement<S::Attachment, S::Video> {
        &self.announcement
    }

    /// The publications that hold slots.
    pub fn publications(&self) -> &Publications<S> {
        &self.publications
    }

    /// Reports to the owner, to observers and to the log.
    pub fn reports(&self) -> &Reports {
        &self.reports
    }

    /// The same, to be added to.
    pub fn reports_mut(&mut self) -> &mut Reports {
        &mut self.reports
    }

    /// Readers and dma-bufs.
    pub fn dma_bufs(&self) -> &DeviceUse<S> {
        &self.dma_bufs
    }

    /// When the exporter polls.
    #[cfg(feature = "testing")]
    pub fn polling_mut(&mut self) -> &mut Polling {
        &mut self.polling
    }

    /// The things that are dropped when the state is unlocked.
    pub fn deferred_mut(&mut self) -> &mut Deferred {
        &mut self.deferred
    }

    /// Returns whether the stream is closed.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The sequence number of the next publication.
    pub fn next_sequence(&self) -> Sequence {
        self.publications.next()
    }

    /// The readers of the stream.
    pub fn readers(&self) -> &Readers<S> {
        &self.readers
    }

    /// The same, to be changed.
    pub fn readers_mut(&mut self) -> &mut Readers<S> {
        &mut self.readers
    }

    /// Begins a turn of the service thread: reclaims, and decides how urgently to poll until the
    /// next turn.
    pub fn begin_turn(&mut self) -> Turn {
        let unreturned = self.count_unreturned();
        let progress = self.reclaim();
        self.note_returns(unreturned);
        self.trim();
        self.polling.begin_turn(self.needed_urgency());
        let trash = self.deferred.take_resources();
        let (watch, trims_at) = (self.polling.watch(), self.slots.trims_at());
        Turn { progress, watch, has_more_to_do: self.has_more_to_do(), trims_at, trash }
    }

    /// Returns the polling urgency for what sends no notification.
    fn needed_urgency(&self) -> Urgency {
        if self.is_downloading() || (self.polling.fences_pending() && self.has_backlogs()) {
            Urgency::Close
        } else if self.dma_bufs.has_unsettled() {
            Urgency::Unhurried
        } else {
            self.returns_urgency()
        }
    }

    /// The kind of memory that frames go to.
    pub fn kind(&self) -> MemoryKind {
        self.slots.kind()
    }

    /// Places the following frames in host memory, or where the selected kind says.
    pub fn use_host_memory(&mut self, yes: bool) {
        self.slots.use_host(yes);
    }

    /// Registers a thread that begins to wait, and is woken by `own`.
    pub fn begin_wait(&mut self, own: Option<S::Waiter>) -> WaiterId {
        self.waiters.begin(own)
    }

    /// Removes a thread that no longer waits. After the last one, readers need not send wake-ups.
    pub fn end_wait(&mut self, waiter: WaiterId) {
        if self.waiters.end(waiter) {
            self.end_waits();
        }
    }

    /// Makes all other waiting threads check again.
    pub fn interrupt_other_waits(&self, waiter: Option<WaiterId>) {
        self.waiters.others(waiter).for_each(Waiter::wake);
    }
}
