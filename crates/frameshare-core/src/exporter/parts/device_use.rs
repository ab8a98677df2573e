// SPDX-License-Identifier: MIT OR Apache-2.0

//! Publications whose dma-bufs devices still use: a dma-buf returns to its owner when they have
//! finished the readers' work on it, whether or not the readers live.

use super::Reports;
use crate::exporter::{
    statistics::DmaBufStats,
    system::{Slot, System},
};
use std::{
    any::Any,
    time::{Duration, Instant},
};

/// Owns the publications whose dma-bufs devices still use, and whether dma-bufs are shared.
pub struct DeviceUse<S: System> {
    is_used: bool,
    is_required: bool,
    stats: DmaBufStats,
    unsettled: Vec<Unsettled<S>>,
}

/// A publication without leases whose dma-buf a device still uses.
struct Unsettled<S: System> {
    slot: S::Slot,
    keep: Option<Box<dyn Any + Send>>,
    work: S::DeviceWork,
    since: Instant,
}

impl<S: System> Default for DeviceUse<S> {
    fn default() -> Self {
        let (is_used, is_required, stats) = (false, false, DmaBufStats::default());
        Self { is_used, is_required, stats, unsettled: Vec::new() }
    }
}

impl<S: System> DeviceUse<S> {
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

    /// Returns whether only readers that get dma-bufs can read the frames.
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
    pub fn count(&mut self, slot: &S::Slot, system: &S) {
        if slot.is_dma_buf() {
            self.stats.frames += 1;
            self.stats.fenced += u64::from(system.is_written_by_device(slot));
        }
    }

    /// Keeps a publication whose last lease has ended while devices use its dma-buf. Returns the
    /// user data if none does.
    pub fn settle(
        &mut self,
        slot: S::Slot,
        keep: Option<Box<dyn Any + Send>>,
        system: &S,
    ) -> Option<Box<dyn Any + Send>> {
        let Some(work) = system.device_work(&slot) else { return keep };
        self.unsettled.push(Unsettled { slot, keep, work, since: S::now() });
        None
    }

    /// Takes out the user data of publications whose dma-bufs no device uses, or one uses for too
    /// long, and adds a line for each late one to the log.
    pub fn collect(
        &mut self,
        timeout: Duration,
        reports: &mut Reports,
        system: &S,
    ) -> Vec<Box<dyn Any + Send>> {
        let now = S::now();
        let is_over = |one: &mut Unsettled<S>| {
            let is_late = now.saturating_duration_since(one.since) > timeout;
            if is_late {
                reports.warn(format!(
                    "a device has used {:?} for longer than the fence timeout ({timeout:?}): it returns to its owner",
                    one.slot.id()
                ));
            }
            is_late || system.is_settled(&one.slot, &mut one.work)
        };
        self.unsettled.extract_if(.., is_over).filter_map(|one| one.keep).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{Fake, Memory, memory, pass, slot};

    const TIMEOUT: Duration = Duration::from_secs(1);

    fn dma_buf() -> <Fake as System>::Slot {
        slot(0, Memory { is_dma_buf: true, ..memory(1) })
    }

    #[test]
    fn dma_buf_returns_when_no_device_uses_it() {
        let (mut devices, mut reports) = (DeviceUse::default(), Reports::default());
        let mut system = Fake::default();
        assert!(devices.settle(dma_buf(), Some(Box::new(1)), &system).is_some());
        system.device_works = true;
        assert!(devices.settle(slot(0, memory(1)), Some(Box::new(1)), &system).is_some());
        assert!(!devices.has_unsettled());
        assert!(devices.settle(dma_buf(), Some(Box::new(1)), &system).is_none());
        assert!(devices.has_unsettled());
        pass(TIMEOUT);
        assert!(devices.collect(TIMEOUT, &mut reports, &system).is_empty());
        system.device_works = false;
        assert_eq!(devices.collect(TIMEOUT, &mut reports, &system).len(), 1);
        assert!(!devices.has_unsettled() && reports.take_warnings().is_empty());
    }

    #[test]
    fn dma_buf_returns_after_the_fence_timeout() {
        let (mut devices, mut reports) = (DeviceUse::default(), Reports::default());
        let system = Fake { device_works: true, ..Fake::default() };
        devices.settle(dma_buf(), Some(Box::new(1)), &system);
        pass(TIMEOUT + Duration::from_nanos(1));
        devices.settle(dma_buf(), Some(Box::new(2)), &system);
        let [late] = &devices.collect(TIMEOUT, &mut reports, &system)[..] else { panic!("one is late") };
        assert_eq!(late.downcast_ref(), Some(&1));
        assert_eq!(reports.take_warnings().len(), 1);
    }

    #[test]
    fn frames_in_dma_bufs_are_counted() {
        let mut devices = DeviceUse::default();
        for (slot, device_works) in [(slot(0, memory(1)), true), (dma_buf(), false), (dma_buf(), true)] {
            devices.count(&slot, &Fake { device_works, ..Fake::default() });
        }
        assert_eq!(devices.stats(), DmaBufStats { frames: 2, fenced: 1 });
    }

    #[test]
    fn sharing_and_need_of_dma_bufs_are_set_apart() {
        let mut devices = DeviceUse::<Fake>::default();
        assert!(!devices.are_used() && !devices.are_required());
        devices.note_use();
        assert!(devices.are_used() && !devices.are_required());
        devices.require(true);
        assert!(devices.are_required());
        devices.require(false);
        assert!(!devices.are_required());
    }
}
