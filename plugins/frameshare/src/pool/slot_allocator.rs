// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slot allocator shared by all pools of one run of the sink.

use super::HostPool;
use crate::sync::lock;
use frameshare::Wait;
use frameshare::exporter::{Exporter, Purpose, Slot};
use glib::prelude::*;
use std::sync::{
    Mutex, PoisonError, RwLock,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Closed when the sink stops: pools may live longer, and hand out private memory from then on.
#[derive(Default)]
pub(crate) struct SlotAllocator {
    /// Locked for reading during an allocation, so that no pool keeps an exporter that the sink has
    /// removed. The exporter may drop buffers meanwhile, which return to their pools: nothing on
    /// that path may take this lock again.
    exporter: RwLock<Option<Exporter>>,
    /// Never held while a pool is called.
    pools: Mutex<Vec<glib::WeakRef<HostPool>>>,
    closed: AtomicBool,
    /// The sink waits for a slot, and gets all that become free.
    wanted: AtomicBool,
    private: AtomicU64,
}

impl SlotAllocator {
    pub(crate) fn new(exporter: Exporter) -> Self {
        Self { exporter: RwLock::new(Some(exporter)), ..Self::default() }
    }

    /// Closes the allocator: no pool has slots to hand out, and none keeps the exporter alive.
    pub(crate) fn close(&self) {
        self.closed.store(true, Relaxed);
        let exporter = self.exporter.write().unwrap_or_else(PoisonError::into_inner).take();
        self.trim();
        drop(exporter);
    }

    /// Sets whether the sink waits for a slot; then no pool keeps or takes one.
    pub(crate) fn want_slots(&self, yes: bool) {
        self.wanted.store(yes, Relaxed);
        if yes {
            self.trim();
        }
    }

    /// Returns whether a pool may keep the slots that return to it.
    pub(super) fn may_keep_slots(&self) -> bool {
        !self.closed.load(Relaxed) && !self.wanted.load(Relaxed)
    }

    /// Returns a slot for upstream to write; none if the exporter has no free one or is closed.
    pub(super) fn slot(&self, size: u64) -> Option<Slot> {
        if self.wanted.load(Relaxed) {
            return None;
        }
        let exporter = self.exporter.read().unwrap_or_else(PoisonError::into_inner);
        match exporter.as_ref()?.acquire(size, Purpose::Pool, Wait::No) {
            Ok(slot) => Some(slot),
            Err(error) => {
                gst::debug!(super::CAT, "no slot of {size} bytes for upstream: {error}");
                None
            }
        }
    }

    /// Returns buffers whose leases have ended to their pools.
    pub(super) fn reclaim(&self) {
        if let Some(exporter) = self.exporter.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
            exporter.reclaim();
        }
    }

    pub(super) fn add(&self, pool: &HostPool) {
        let mut pools = lock(&self.pools);
        pools.retain(|pool| pool.upgrade().is_some());
        pools.push(pool.downgrade());
    }

    /// Returns the slots of unused buffers in pools to the exporter.
    pub(crate) fn trim(&self) {
        let pools = lock(&self.pools).clone();
        for pool in pools.iter().filter_map(glib::WeakRef::upgrade) {
            pool.trim();
        }
    }

    pub(super) fn count_private(&self) {
        self.private.fetch_add(1, Relaxed);
    }

    /// Number of buffers that were handed out without a slot.
    pub(crate) fn private(&self) -> u64 {
        self.private.load(Relaxed)
    }
}
