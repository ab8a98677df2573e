// SPDX-License-Identifier: MIT OR Apache-2.0

//! Private state of an exporter: all decisions are made from it.

mod admission;
mod adopt;
mod backlog_delivery;
mod control;
mod credit;
mod disconnect;
mod dma_bufs;
mod downloads;
mod ended_publications;
mod guard;
mod late_joiners;
mod metadata;
mod offers;
mod retirement;
mod routes;
mod slot_acquisition;
mod slow_readers;
mod snapshot;
mod stats;
#[cfg(test)]
mod tests;
mod trimming;
mod udmabuf;
mod upstream_buffers;

pub use admission::{Left, Promise, Shares};
pub use guard::Shared;
pub use routes::Wanting;

use super::{
    config::Config,
    error::SetupError,
    link::{Ending, Link, WakesDue, Weight},
    parts::{
        Announcement, Arrivals, Kept, Polling, Publications, Readers, Reports, Slots, Urgency, WaiterId,
        Waiters,
    },
    resources::{Deferred, DmaBufs, Downloads, Metadata, Pinned},
};
use crate::{
    Interrupt,
    fence::Signals,
    memory::{self, Account, Accounts},
    sys::{self, Label, Now, Peer, Sleepers, monotonic_ns},
};
use frameshare_cuda::{context::Context, stream::Stream};
use frameshare_protocol::{AreaIndex, MemoryKind, Sequence};
use std::{any::Any, mem, sync::Arc, time::Instant};

/// The findings of one turn of the service thread.
pub struct Turn {
    /// A lease ended.
    pub progress: bool,
    pub watch: Urgency,
    /// Something outlives the stream: readers' imports, or resources of GPU work.
    pub has_more_to_do: bool,
    /// Time of the next check for unused slots, if there is one.
    pub trims_at: Option<Instant>,
    /// Resources to be dropped with the state unlocked. That may wait for a GPU.
    pub trash: Vec<Box<dyn Any + Send>>,
}

/// Private state of an exporter.
pub struct State {
    config: Config,
    /// Names the stream's memory files.
    label: Label,
    signals: Signals,
    /// Tells this run of the stream from other runs of the same name.
    session: u64,
    slots: Slots,
    /// The accounts of users that are not trusted with memory.
    accounts: Accounts,
    readers: Readers,
    publications: Publications,
    arrivals: Arrivals,
    announcement: Announcement,
    kept: Kept,
    closed: bool,
    /// The failure of the engine that closed the stream.
    failure: Option<String>,
    metadata: Metadata,
    reports: Reports,
    /// The reason to refuse every reader of another user, if there is one.
    refusal_of_others: Option<String>,
    waiters: Waiters<Interrupt>,
    polling: Polling,
    /// The weight of the frame that waits for readers.
    awaited: Weight,
    /// Downloads for readers that get host memory although the stream's frames are on a GPU.
    downloads: Option<Downloads>,
    dma_bufs: DmaBufs,
    /// Resources that GPU work still uses.
    pinned: Pinned,
    /// Areas whose leases a poll has found ended: empty between polls, which share its memory.
    ended_leases: Vec<AreaIndex>,
    deferred: Deferred,
    wakes_due: WakesDue,
    /// Readers whose links were released since the state was locked, to be woken.
    released_sleepers: Sleepers,
}

impl State {
    pub fn new(config: Config, label: Label) -> Result<Self, SetupError> {
        let metadata = Metadata::new(config.max_slots, &label)?;
        let others = udmabuf::decide(&config, sys::udmabuf);
        let mut reports = Reports::default();
        others.notice.into_iter().for_each(|notice| reports.tell(notice));
        Ok(Self {
            refusal_of_others: others.refusal,
            slots: Slots::new(memory::select::select(config.memory, config.gpu.as_ref())?),
            signals: Signals::new(config.gpu.as_ref())?,
            accounts: Accounts::new(config.max_retired_bytes),
            publications: Publications::new(config.max_slots),
            config,
            label,
            session: monotonic_ns(),
            readers: Readers::default(),
            arrivals: Arrivals::default(),
            announcement: Announcement::default(),
            kept: Kept::default(),
            closed: false,
            failure: None,
            metadata,
            reports,
            polling: Polling::default(),
            awaited: Weight::default(),
            downloads: None,
            dma_bufs: DmaBufs::default(),
            pinned: Pinned::default(),
            ended_leases: Vec::new(),
            waiters: Waiters::default(),
            deferred: Deferred::default(),
            wakes_due: WakesDue::default(),
            released_sleepers: Sleepers::default(),
        })
    }

    /// Applies `f` to every link, and ends links for which it fails.
    pub fn each_link(&mut self, mut f: impl FnMut(&mut Link) -> Result<(), Ending>) {
        let mut index = 0;
        while index < self.readers.present().len() {
            let waited = self.readers[index].has_waiting_messages();
            match f(&mut self.readers[index]) {
                Ok(()) => {
                    if self.readers[index].has_waiting_messages() != waited {
                        self.waiters.note_change();
                    }
                    index += 1;
                }
                Err(ending) => self.drop_link(index, &ending),
            }
        }
    }

    /// Ends the leases that readers have released, and retires unused generations. Returns true if
    /// a lease ended.
    pub fn reclaim(&mut self) -> bool {
        let mut ended = mem::take(&mut self.ended_leases);
        let mut pending = false;
        let timeout = self.config.fence_timeout;
        self.each_link(|link| {
            pending |= link.leases.collect_released(&mut ended, timeout, &Now::default())?;
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
            let unpinned = self.pinned.collect();
            self.deferred.drop_user_data(unpinned);
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
            let now = &Now::default();
            match link.leases.collect_released(ended, self.config.fence_timeout, now) {
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

    /// Returns whether a change leaves more than wake-ups for the time when the state is unlocked.
    fn leaves_more(&self) -> bool {
        self.deferred.has_any() || self.reports.has_any() || self.waiters.has_change()
    }

    /// The flag by which links say that readers are to be woken.
    pub fn wakes_due(&self) -> WakesDue {
        self.wakes_due.clone()
    }

    /// Takes the readers that are to be woken, if there are some.
    fn take_sleepers(&mut self) -> Option<Sleepers> {
        if !self.wakes_due.take() {
            return None;
        }
        let mut sleepers = mem::take(&mut self.released_sleepers);
        self.readers.all_mut().for_each(|link| link.take_wake(&mut sleepers));
        Some(sleepers)
    }

    /// Drops `what` when the work queued on `stream` so far is done, or soon if that cannot be
    /// recorded.
    ///
    /// # Errors
    /// As [`Pinned::record`].
    pub fn drop_after(&mut self, stream: &Stream, what: Box<dyn Any + Send>) -> frameshare_cuda::Result<()> {
        self.polling.want(self.demanded_urgency());
        // An exporter without a GPU has no context of its own.
        let context = self.gpu().unwrap_or(stream.context()).clone();
        match self.pinned.record(stream, &context) {
            Ok(done) => {
                self.pinned.hold(done, what);
                Ok(())
            }
            Err(error) => {
                // Foreign code: with the state unlocked.
                self.deferred.drop_user_data([what]);
                Err(error)
            }
        }
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

    /// The accounts of users that are not trusted with memory.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The account of a reader's user.
    pub fn account_of(&self, peer: &Peer) -> Account {
        self.accounts.of(peer.uid, !self.config.trusts_with_memory(peer))
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn label(&self) -> &Label {
        &self.label
    }

    pub fn gpu(&self) -> Option<&Arc<Context>> {
        self.config.gpu.as_ref()
    }

    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The sequence number of the next publication.
    pub fn next_sequence(&self) -> Sequence {
        self.publications.next()
    }

    /// The readers of the stream.
    pub fn readers(&self) -> &Readers {
        &self.readers
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

    pub fn use_host_memory(&mut self, yes: bool) {
        self.slots.use_host(yes);
    }

    /// Registers a thread that begins to wait, and is woken by `own`.
    pub fn begin_wait(&mut self, own: Option<Interrupt>) -> WaiterId {
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
        self.waiters.others(waiter).for_each(Interrupt::set);
    }
}
