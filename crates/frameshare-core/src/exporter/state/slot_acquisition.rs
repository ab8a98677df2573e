// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots of new frames: allocation and reuse.

use super::State;
use crate::exporter::{
    frees_imports_first,
    now::Now,
    slot::{NoSlot, Purpose, Unallocated, Vacancy},
    system::{Slot, System},
};
use frameshare_protocol::{AreaIndex, MemoryKind};
use std::collections::BTreeSet;

/// Slots are allocated in whole pages.
const PAGE: u64 = 4096;

/// Number of slots of one size and kind that only wait for their own writes, from which on an
/// acquisition waits for the GPU before another one is allocated.
const MAX_UNWRITTEN: usize = 8;

impl<S: System> State<S> {
    /// Returns a free slot of at least `size` bytes, or capacity for one, unless the writer is far
    /// ahead of its GPU.
    pub fn place(&mut self, size: u64, purpose: Purpose) -> Result<Vacancy<S>, NoSlot<S>> {
        match self.place_within_limit(size, purpose)? {
            Vacancy::Unallocated(_) if self.is_far_ahead() => {
                Err(NoSlot::Exhausted { max_slots: self.limits.max_slots })
            }
            vacancy => Ok(vacancy),
        }
    }

    /// Returns a free slot of at least `size` bytes, or capacity for one.
    pub fn place_within_limit(&mut self, size: u64, purpose: Purpose) -> Result<Vacancy<S>, NoSlot<S>> {
        if self.closed {
            return Err(NoSlot::Closed);
        }
        let needed = size.max(1).checked_next_multiple_of(PAGE).ok_or(NoSlot::Size(size))?;
        if needed > frameshare_protocol::limits::MAX_SLOT_SIZE {
            return Err(NoSlot::Size(size));
        }
        let kind = self.kind();
        if self.slots.renew_for_frames(needed, &self.system).map_err(NoSlot::Memory)? {
            self.retire();
            // Slots of the older ones no longer count as upstream's: there may be room now.
            self.waiters.note_change();
        }
        // Readers are polled once a frame: here if no slot is free, else by the publication.
        if self.may_take(purpose)
            && let Some(slot) = self.slots.free(kind, 0, S::now())
        {
            return Ok(Vacancy::Free(slot));
        }
        // This may find that the GPU has failed, and close the stream.
        self.reclaim();
        self.polling.note_poll();
        if self.closed {
            return Err(NoSlot::Closed);
        }
        if !self.may_take(purpose) {
            return Err(NoSlot::Exhausted { max_slots: self.limits.max_slots });
        }
        self.place_in(kind).unwrap_or(Err(NoSlot::Size(size)))
    }

    /// Returns whether the writer of new frames is so far ahead of its GPU that it should wait for
    /// one of the slots that there are.
    pub fn is_far_ahead(&self) -> bool {
        self.count_unwritten() >= MAX_UNWRITTEN
    }

    /// Returns the number of slots that new frames may take as soon as their own writes are done.
    fn count_unwritten(&self) -> usize {
        let unwritten = self.publications.unwritten();
        self.slots.count_usable(unwritten.iter().map(|one| one.slot.id().generation))
    }

    /// Returns whether one more slot may be used for this purpose.
    fn may_take(&self, purpose: Purpose) -> bool {
        purpose != Purpose::Pool || self.promised_slots() < self.limits.max_slots
    }

    /// Returns a free slot of the open generation of this kind, or capacity for one, if there is
    /// such a generation.
    fn place_in(&mut self, kind: MemoryKind) -> Option<Result<Vacancy<S>, NoSlot<S>>> {
        let max = self.limits.max_slots;
        let usual = match self.has_backlogs() {
            true => self.readers.credit() + self.held_upstream(kind) + self.reserve(),
            false => max,
        };
        self.slots.place(kind, usual, max, &self.system, S::now())
    }

    /// Makes a slot of memory that was allocated for it, unless the limit has been reached
    /// meanwhile.
    pub fn add(&mut self, slot: &Unallocated<S>, memory: S::Memory) -> Option<S::Slot> {
        let slot = self.slots.add(slot, memory, &self.system, self.limits.max_slots, S::now())?;
        let kind = self.slots.generation(slot.id().generation).map_or(MemoryKind::Host, |one| one.kind);
        self.note_local(&slot, kind);
        self.introduce_early(&slot);
        self.begin_trimming();
        Some(slot)
    }

    /// Number of slots in GPU memory.
    pub fn count_gpu_slots(&self) -> usize {
        let on_gpu = self.slots.generations().iter().filter(|one| one.kind.is_gpu());
        on_gpu.map(|one| one.len() as usize).sum()
    }

    /// Introduces a new slot to the readers that will get its first frame, so that they import it
    /// while the frame is written. Readers that do not keep up import it later.
    fn introduce_early(&mut self, slot: &S::Slot) {
        let found = self.slots.generation(slot.id().generation);
        let Some((kind, pool)) = found.map(|one| (one.kind, one.pool().cloned())) else { return };
        let downloads = slot.is_in_host() && self.kind() != MemoryKind::Host;
        self.each_link(|link| {
            // At most two descriptors: the slot's and its generation's. A message that waits would
            // cost the reader a frame.
            if link.downloads() != downloads || link.is_full() || !link.outbox.has_room(2) {
                return Ok(());
            }
            link.introduce(slot, kind, false, pool.as_ref())
        });
    }

    /// Returns whether there are slots of `size` bytes to wait for when no more can be allocated.
    pub fn has_slots(&self, size: u64) -> bool {
        self.slots.has(self.kind(), size)
    }

    /// Reuses an existing slot when no further slot can be allocated. `latest` readers lose untaken
    /// frames for it, unless a lossless one still needs them.
    pub fn reuse_slot(&mut self, size: u64) -> Option<S::Slot> {
        let (kind, now) = (self.kind(), Now::<S>::default());
        let lossless = self.readers.lossless();
        let needed: BTreeSet<AreaIndex> =
            lossless.flat_map(|link| link.leases.areas().chain(link.backlog().areas())).collect();
        loop {
            if let Some(slot) = self.slots.free(kind, size, now.get()) {
                return Some(slot);
            }
            // User data of a lease that has just ended may hold a slot; it is dropped when the
            // state is unlocked. A slot whose write is under way is free soon.
            if self.deferred.has_user_data() || self.count_unwritten() > 0 {
                return None;
            }
            let mut ended = Vec::new();
            self.each_link(|link| {
                if !link.is_lossless() {
                    link.leases.revoke_oldest(&mut ended, |area| !needed.contains(&area), &now)?;
                }
                Ok(())
            });
            if ended.is_empty() {
                return None;
            }
            self.end_leases(ended);
        }
    }

    /// Returns a free host slot for a download, or capacity for one.
    pub fn place_host(&mut self, size: u64) -> Result<Vacancy<S>, NoSlot<S>> {
        let needed = size.max(1).checked_next_multiple_of(PAGE).ok_or(NoSlot::Size(size))?;
        if self.slots.renew_for_downloads(needed, &self.system).map_err(NoSlot::Memory)? {
            self.retire();
        }
        self.place_in(MemoryKind::Host).unwrap_or(Err(NoSlot::Size(size)))
    }

    /// Registers memory for readers of this process, which use it in place since they cannot import
    /// it.
    pub fn note_local(&self, slot: &S::Slot, kind: MemoryKind) {
        if !frees_imports_first(kind) {
            return;
        }
        self.system.share_within_process(slot);
    }
}
