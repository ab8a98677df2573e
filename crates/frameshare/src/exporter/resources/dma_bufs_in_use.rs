// SPDX-License-Identifier: MIT OR Apache-2.0

//! Fences of published dma-bufs: a dma-buf returns to its owner when devices have finished the
//! readers' work on it, whether or not the readers live.

use crate::{
    exporter::{observe::DmaBufStats, parts::Reports, slot::Slot},
    sys::{Fences, PendingFences},
};
use std::{
    any::Any,
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Owns the publications whose dma-bufs devices still use, and whether dma-bufs are shared.
#[derive(Default)]
pub struct DmaBufs {
    is_used: bool,
    is_required: bool,
    stats: DmaBufStats,
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
    /// Records that the owner of the stream has asked to share dma-bufs.
    pub fn note_use(&mut self) {
        self.is_used = true;
    }

    /// Returns whether the owner of the stream has asked to share dma-bufs.
    pub fn are_used(&self) -> bool {
        self.is_used
    }

    /// Sets whether only readers that get dma-bufs can read the frames.
    pub fn require(&mut self, yes: bool) {
        self.is_required = yes;
    }

    pub fn are_required(&self) -> bool {
        self.is_required
    }

    /// Frames published, and those of them that a device still wrote.
    pub fn stats(&self) -> DmaBufStats {
        self.stats
    }

    /// Returns whether devices still use some.
    pub fn has_unsettled(&self) -> bool {
        !self.unsettled.is_empty()
    }

    /// Counts a frame that is published in this slot, if it is a dma-buf.
    pub fn count(&mut self, slot: &Slot) {
        let Some(dma_buf) = slot.0.memory.dma_buf() else { return };
        self.stats.frames += 1;
        self.stats.fenced += u64::from(matches!(dma_buf.is_settled(Fences::Writers), Ok(false)));
    }

    /// Keeps a publication whose last lease has ended while devices use its dma-buf. Returns the
    /// user data if none does.
    pub fn settle(&mut self, slot: Slot, keep: Option<Box<dyn Any + Send>>) -> Option<Box<dyn Any + Send>> {
        let pending = slot.0.memory.dma_buf().map(|dma_buf| dma_buf.pending(Fences::All));
        // A failure of poll(2) is a lack of memory: nothing can be waited for.
        let Some(Ok(Some(fences))) = pending else { return keep };
        self.unsettled.push(Unsettled { slot, keep, fences, since: Instant::now() });
        None
    }

    /// Takes out the user data of publications whose fences are signaled, or late, and adds a line
    /// for each late one to the log.
    pub fn collect(&mut self, timeout: Duration, reports: &mut Reports) -> Vec<Box<dyn Any + Send>> {
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
