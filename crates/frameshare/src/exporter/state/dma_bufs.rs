// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fences of published dma-bufs: a dma-buf returns to its owner when devices have finished the
//! readers' work on it, whether or not the readers live.

use super::State;
use crate::{
    exporter::{
        link::Ending,
        observe::DmaBufStats,
        owners::{Reports, Urgency},
        slot::Slot,
    },
    sys::{Fences, Peer, PendingFences},
};
use frameshare_protocol::{MemoryKind, message::Reason};
use std::{
    any::Any,
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// The dma-bufs of one exporter.
#[derive(Default)]
pub struct DmaBufs {
    /// The owner has asked to share dma-bufs.
    pub is_used: bool,
    /// Only readers that get dma-bufs can read the frames.
    is_required: bool,
    /// Frames published, and those of them that a device still wrote.
    pub stats: DmaBufStats,
    unsettled: Vec<Unsettled>,
}

/// A publication without leases whose dma-buf a device still uses.
struct Unsettled {
    slot: Slot,
    keep: Option<Box<dyn Any + Send>>,
    fences: PendingFences,
    since: Instant,
}

impl std::fmt::Debug for DmaBufs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DmaBufs").field("stats", &self.stats).finish_non_exhaustive()
    }
}

impl DmaBufs {
    pub fn has_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Counts a frame that is published in this slot, if it is a dma-buf.
    fn count(&mut self, slot: &Slot) {
        let Some(dma_buf) = slot.0.memory.dma_buf() else { return };
        self.stats.frames += 1;
        self.stats.fenced += u64::from(matches!(dma_buf.is_settled(Fences::Writers), Ok(false)));
    }

    /// Keeps a publication whose last lease has ended while devices use its dma-buf. Returns the
    /// user data if none does.
    fn settle(&mut self, slot: Slot, keep: Option<Box<dyn Any + Send>>) -> Option<Box<dyn Any + Send>> {
        let pending = slot.0.memory.dma_buf().map(|dma_buf| dma_buf.pending(Fences::All));
        // A failure of poll(2) is a lack of memory: nothing can be waited for.
        let Some(Ok(Some(fences))) = pending else { return keep };
        self.unsettled.push(Unsettled { slot, keep, fences, since: Instant::now() });
        None
    }

    /// Takes out the user data of publications whose fences are signaled, or late, and adds a line
    /// for each late one to the log.
    fn collect(&mut self, timeout: Duration, reports: &mut Reports) -> Vec<Box<dyn Any + Send>> {
        let is_settled = |one: &mut Unsettled| {
            let signaled =
                one.slot.0.memory.dma_buf().map(|dma_buf| one.fences.are_signaled(dma_buf.as_fd()));
            let is_late = one.since.elapsed() > timeout;
            if is_late {
                reports.warn(format!(
                    "a device has used {:?} for longer than the fence timeout ({timeout:?}): it returns to its owner",
                    one.slot.0.id
                ));
            }
            is_late || !matches!(signaled, Some(Ok(false)))
        };
        self.unsettled.extract_if(.., is_settled).filter_map(|settled| settled.keep).collect()
    }
}

impl State {
    /// Records that the owner wants to share dma-bufs.
    pub fn note_dma_bufs(&mut self) {
        self.dma_bufs.is_used = true;
    }

    /// Refuses readers that get no dma-bufs from now on, and disconnects present ones; or admits
    /// them again.
    pub fn require_dma_bufs(&mut self, yes: bool) {
        self.dma_bufs.is_required = yes;
        self.disconnect_without_dma_bufs();
    }

    /// Returns the refusal of a reader that gets no dma-bufs, for the reason `why`, if all readers
    /// must.
    pub fn refusal_without_dma_bufs(&self, peer: &Peer, why: Option<&str>) -> Option<Ending> {
        let why = why.filter(|_| self.dma_bufs.is_required)?;
        let (reason, denied) = match self.config.may_have_gpu_memory(peer) {
            true => (Reason::NothingInCommon, ""),
            false => (Reason::PermissionDenied, "permission denied, "),
        };
        let text = format!("{denied}the stream's frames are in dma-bufs that cannot be copied: {why}");
        Some(Ending::new(reason, text))
    }

    /// Disconnects present readers that get no dma-bufs, if all must. They keep the frames that
    /// they have taken.
    pub(super) fn disconnect_without_dma_bufs(&mut self) {
        for index in (0..self.readers.present().len()).rev() {
            let link = &self.readers[index];
            let why = link.cannot_adopt(MemoryKind::DmaBuf);
            if let Some(ending) = self.refusal_without_dma_bufs(link.peer(), why) {
                self.evict(index, &ending);
            }
        }
    }

    pub(super) fn count_dma_buf(&mut self, slot: &Slot) {
        self.dma_bufs.count(slot);
    }

    /// Frees the slot of a publication that is written and has no leases, and drops its user data,
    /// when devices have finished their work on it.
    pub(super) fn free(&mut self, slot: Slot, keep: Option<Box<dyn Any + Send>>) {
        if slot.0.memory.dma_buf().is_none() {
            self.deferred.drop_user_data(keep);
            return;
        }
        let done = self.dma_bufs.settle(slot, keep);
        self.deferred.drop_user_data(done);
        if self.dma_bufs.has_unsettled() {
            // No notification follows the end of a device's work.
            self.polling.want(Urgency::Unhurried);
        }
    }

    pub(super) fn collect_dma_bufs(&mut self) {
        if self.dma_bufs.has_unsettled() {
            let done = self.dma_bufs.collect(self.config.fence_timeout, &mut self.reports);
            self.deferred.drop_user_data(done);
        }
    }
}
