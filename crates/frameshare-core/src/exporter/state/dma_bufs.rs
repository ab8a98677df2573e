// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers and dma-bufs: who gets them, and when they return to their owner.

use super::State;
use crate::exporter::{
    ending::Ending,
    parts::Urgency,
    system::{Slot, System},
};
use frameshare_protocol::{MemoryKind, message::Reason};
use std::any::Any;

impl<S: System> State<S> {
    /// Records that the owner wants to share dma-bufs.
    pub fn note_dma_bufs(&mut self) {
        self.dma_bufs.note_use();
    }

    /// Refuses readers that get no dma-bufs from now on, and disconnects present ones; or admits
    /// them again.
    pub fn require_dma_bufs(&mut self, yes: bool) {
        self.dma_bufs.require(yes);
        self.disconnect_without_dma_bufs();
    }

    /// Returns the refusal of a reader that gets no dma-bufs, for the reason `why`, if all readers
    /// must. Its user `is_trusted` with GPU memory, or not.
    pub fn refusal_without_dma_bufs(&self, is_trusted: bool, why: Option<&str>) -> Option<Ending> {
        let why = why.filter(|_| self.dma_bufs.are_required())?;
        let (reason, denied) = match is_trusted {
            true => (Reason::NothingInCommon, ""),
            false => (Reason::PermissionDenied, "permission denied, "),
        };
        let text = format!("{denied}the stream's frames are in dma-bufs that cannot be copied: {why}");
        Some(Ending::new(reason, text))
    }

    /// Disconnects present readers that get no dma-bufs, if all must. They keep the frames that
    /// they have taken.
    pub fn disconnect_without_dma_bufs(&mut self) {
        for index in (0..self.readers.present().len()).rev() {
            let link = &self.readers[index];
            let why = link.cannot_adopt(MemoryKind::DmaBuf);
            if let Some(ending) = self.refusal_without_dma_bufs(link.peer().may_have_gpu_memory, why) {
                self.evict(index, &ending);
            }
        }
    }

    /// Counts a frame that is published in this slot, if it is a dma-buf.
    pub fn count_dma_buf(&mut self, slot: &S::Slot) {
        self.dma_bufs.count(slot, &self.system);
    }

    /// Frees the slot of a publication that is written and has no leases, and drops its user data,
    /// when devices have finished their work on it.
    pub fn free(&mut self, slot: S::Slot, keep: Option<Box<dyn Any + Send>>) {
        if !slot.is_dma_buf() {
            self.deferred.drop_user_data(keep);
            return;
        }
        let done = self.dma_bufs.settle(slot, keep, &self.system);
        self.deferred.drop_user_data(done);
        if self.dma_bufs.has_unsettled() {
            // No notification follows the end of a device's work.
            self.polling.want(Urgency::Unhurried);
        }
    }

    /// Returns dma-bufs to their owners that no device uses any more.
    pub fn collect_dma_bufs(&mut self) {
        let done = self.dma_bufs.collect(self.limits.fence_timeout, &mut self.reports, &self.system);
        self.deferred.drop_user_data(done);
    }
}
