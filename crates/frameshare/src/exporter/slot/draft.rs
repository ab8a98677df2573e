// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots that are written and may be dropped unpublished.

use super::Slot;
use crate::{gpu::drop_behind, memory::Address};
use frameshare_cuda::context::Context;
use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// A slot that its holder writes on streams that are named by its publication only. If it is
/// dropped unpublished, the slot is free when all work of the exporter's context is done.
#[derive(Debug)]
pub struct Draft {
    slot: Slot,
    gpu: Option<Arc<Context>>,
    /// The address of GPU memory was given out, and no publication has named the work that writes
    /// it.
    is_exposed: AtomicBool,
}

impl Draft {
    /// A slot of an exporter that uses this context.
    pub fn new(slot: Slot, gpu: Option<&Arc<Context>>) -> Self {
        Self { slot, gpu: gpu.cloned(), is_exposed: AtomicBool::new(false) }
    }

    /// Gives out the address.
    pub fn expose(&self) -> Address {
        let address = self.slot.address();
        self.is_exposed.fetch_or(matches!(address, Address::Device(_)), Ordering::Relaxed);
        address
    }

    /// The slot for its publication, which keeps it until it is written, also if it fails.
    pub fn for_publication(&self) -> &Slot {
        self.is_exposed.store(false, Ordering::Relaxed);
        &self.slot
    }
}

impl Deref for Draft {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        &self.slot
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some(gpu) = self.gpu.as_ref().filter(|_| self.is_exposed.load(Ordering::Relaxed)) {
            drop_behind(gpu, None, self.slot.clone());
        }
    }
}
