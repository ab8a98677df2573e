// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots of new frames: allocation and reuse.

use super::State;
use crate::{
    exporter::{
        config::Config,
        slot::{AcquireError, Making, Purpose, Slot, Unallocated, Vacancy},
    },
    memory::{Accounts, Allocation, frees_imports_first, same_process},
    sys::{Label, Now},
};
use frameshare_cuda::event::Event;
use frameshare_protocol::{AreaIndex, MemoryKind};
use std::{collections::BTreeSet, sync::Arc, time::Instant};

/// Slots are allocated in whole pages.
const PAGE: u64 = 4096;

/// Number of slots of one size and kind that only wait for their own writes, from which on an
/// acquisition waits for the GPU before another one is allocated.
const MAX_UNWRITTEN: usize = 8;

impl State {
    /// Returns a free slot of at least `size` bytes, or capacity for one, unless the writer is far
    /// ahead of its GPU.
    pub fn place(&mut self, size: u64, purpose: Purpose) -> Result<Vacancy, AcquireError> {
        match self.place_within_limit(size, purpose)? {
            Vacancy::Unallocated(_) if self.is_far_ahead() => {
                Err(AcquireError::Exhausted { max_slots: self.config.max_slots })
            }
            vacancy => Ok(vacancy),
        }
    }

    /// Returns a free slot of at least `size` bytes, or capacity for one.
    pub fn place_within_limit(&mut self, size: u64, purpose: Purpose) -> Result<Vacancy, AcquireError> {
        if self.closed {
            return Err(AcquireError::Closed);
        }
        let needed = size.max(1).checked_next_multiple_of(PAGE).ok_or(AcquireError::Size(size))?;
        if needed > frameshare_protocol::limits::MAX_SLOT_SIZE {
            return Err(AcquireError::Size(size));
        }
        let kind = self.kind();
        if self.slots.renew_for_frames(needed, &making(&self.config, &self.label, &self.accounts))? {
            self.retire();
        }
        // Readers are polled once a frame: here if no slot is free, else by the publication.
        if self.may_take(purpose)
            && let Some(slot) = self.slots.free(kind, 0, Instant::now())
        {
            return Ok(Vacancy::Free(slot));
        }
        // This may find that the GPU has failed, and close the stream.
        self.reclaim();
        self.polling.note_poll();
        if self.closed {
            return Err(AcquireError::Closed);
        }
        if !self.may_take(purpose) {
            return Err(AcquireError::Exhausted { max_slots: self.config.max_slots });
        }
        self.place_in(kind).unwrap_or(Err(AcquireError::Size(size)))
    }

    /// Returns whether the writer of new frames is so far ahead of its GPU that it should wait for
    /// one of the slots that there are.
    pub fn is_far_ahead(&self) -> bool {
        self.count_unwritten() >= MAX_UNWRITTEN
    }

    /// Returns the number of slots that new frames may take as soon as their own writes are done.
    fn count_unwritten(&self) -> usize {
        let unwritten = self.publications.unwritten();
        self.slots.count_usable(unwritten.iter().map(|one| one.slot.0.id.generation))
    }

    /// Returns whether one more slot may be used for this purpose.
    fn may_take(&self, purpose: Purpose) -> bool {
        purpose != Purpose::Pool || self.promised_slots() < self.config.max_slots
    }

    /// Returns a free slot of the open generation of this kind, or capacity for one, if there is
    /// such a generation.
    fn place_in(&mut self, kind: MemoryKind) -> Option<Result<Vacancy, AcquireError>> {
        let max = self.config.max_slots;
        let usual = match self.has_backlogs() {
            true => self.readers.credit() + self.held_upstream(kind) + self.reserve(),
            false => max,
        };
        let making = making(&self.config, &self.label, &self.accounts);
        self.slots.place(kind, usual, max, &making, Instant::now())
    }

    /// Makes a slot of memory that was allocated for it, unless the limit has been reached
    /// meanwhile.
    pub fn add(&mut self, slot: &Unallocated, memory: Arc<dyn Allocation>, exporter: u64) -> Option<Slot> {
        let slot = self.slots.add(slot, memory, exporter, self.config.max_slots, Instant::now())?;
        let kind = self.slots.generation(slot.0.id.generation).map_or(MemoryKind::Host, |one| one.kind);
        self.note_local(&slot, kind);
        self.introduce_early(&slot);
        self.begin_trimming();
        Some(slot)
    }

    /// Keeps an event for the frames in a new slot, unless there is one for each slot.
    pub fn keep_event(&mut self, event: Event) {
        let on_gpu = self.slots.generations().iter().filter(|one| one.kind.is_gpu());
        let slots = on_gpu.map(|one| one.len() as usize).sum();
        self.signals.keep_event(event, slots);
    }

    /// Introduces a new slot to the readers that will get its first frame, so that they import it
    /// while the frame is written. Readers that do not keep up import it later.
    fn introduce_early(&mut self, slot: &Slot) {
        let found = self.slots.generation(slot.0.id.generation);
        let Some((kind, pool)) = found.map(|one| (one.kind, one.pool().cloned())) else { return };
        let downloads = slot.as_ptr().is_some() && self.kind() != MemoryKind::Host;
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
    pub fn reuse_slot(&mut self, size: u64) -> Option<Slot> {
        let (kind, now) = (self.kind(), Now::default());
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
    pub fn place_host(&mut self, size: u64) -> Result<Vacancy, AcquireError> {
        let needed = size.max(1).checked_next_multiple_of(PAGE).ok_or(AcquireError::Size(size))?;
        if self.slots.renew_for_downloads(needed, &making(&self.config, &self.label, &self.accounts))? {
            self.retire();
        }
        self.place_in(MemoryKind::Host).unwrap_or(Err(AcquireError::Size(size)))
    }

    /// Registers memory for readers of this process, which use it in place since they cannot import
    /// it.
    pub(super) fn note_local(&self, slot: &Slot, kind: MemoryKind) {
        if !frees_imports_first(kind) {
            return;
        }
        let key = (self.session, slot.0.id);
        same_process::note(key, &slot.0.memory, self.config.gpu.as_ref());
    }
}

/// The means to make own slots.
fn making<'a>(config: &'a Config, label: &'a Label, accounts: &'a Accounts) -> Making<'a> {
    Making { gpu: config.gpu.as_ref(), label, accounts }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Endpoint, Wait,
        exporter::{Exporter, delivery::download_target, slot::Generation},
        memory::{Allocator, MemoryError, host::Host},
    };
    use std::{
        sync::{
            Mutex,
            mpsc::{Receiver, Sender, channel},
        },
        thread,
        time::Duration,
    };

    /// Allocator that completes on command.
    #[derive(Debug)]
    struct Slow {
        begun: Sender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Allocator for Slow {
        fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
            self.begun.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
            Host::default().allocate(size)
        }
    }

    /// Capacity in the usual generation, found before another thread filled the overflow.
    #[test]
    fn slots_of_both_generations_stay_within_limit() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default().max_slots(4), drop).unwrap();
        exporter.locked(|state| {
            let memory = || Host::default().allocate(PAGE).unwrap();
            let place = |state: &mut State| match state.place(100, Purpose::Copy).unwrap() {
                Vacancy::Unallocated(slot) => slot,
                Vacancy::Free(slot) => panic!("{slot:?} is there already"),
            };
            let (early, late) = (place(state), place(state));
            let label = endpoint.label();
            let making = making(&state.config, &label, &state.accounts);
            let mut overflow = Generation::overflow(9, PAGE, MemoryKind::Host, &making).unwrap();
            (0..3).for_each(|_| _ = overflow.add(memory(), 1, Instant::now()));
            state.slots.generations_mut().push(overflow);
            assert!(state.add(&early, memory(), 1).is_some());
            assert!(state.add(&late, memory(), 1).is_none(), "a fifth slot");
        });
    }

    /// The publishing thread allocates download targets.
    #[test]
    fn allocation_for_download_blocks_no_other_thread() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
        let _first = exporter.acquire(100, Purpose::Copy, Wait::No).unwrap();
        let (begun, begins) = channel();
        let (go_on, told) = channel();
        exporter.locked(|state| {
            let slow = Slow { begun, go_on: Mutex::new(told) };
            state.slots.generations_mut()[0].set_allocator(Arc::new(slow));
            state.slots.keep_host_generation();
        });
        let publisher = exporter.clone();
        let download = thread::spawn(move || download_target::allocate(&publisher.0.shared, 100));
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
        let (asked, answer) = channel();
        let asker = exporter.clone();
        thread::spawn(move || asked.send(asker.stats()).unwrap());
        let answer = answer.recv_timeout(Duration::from_secs(60));
        go_on.send(()).unwrap();
        assert!(download.join().unwrap().is_ok());
        answer.expect("another thread is held up");
    }

    #[test]
    fn allocation_blocks_no_other_thread() {
        let patience = Duration::from_secs(60);
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
        // The first slot begins a generation, whose allocations are slow from now on.
        let first = exporter.acquire(100, Purpose::Copy, Wait::No).unwrap();
        let (begun, begins) = channel();
        let (go_on, told) = channel();
        exporter.locked(|state| {
            let slow = Slow { begun, go_on: Mutex::new(told) };
            state.slots.generations_mut()[0].set_allocator(Arc::new(slow));
        });
        let (done, second) = channel();
        let acquirer = exporter.clone();
        thread::spawn(move || done.send(acquirer.acquire(100, Purpose::Copy, Wait::No)).unwrap());
        begins.recv_timeout(patience).unwrap();

        let (asked, answer) = channel();
        let asker = exporter.clone();
        thread::spawn(move || asked.send(asker.stats()).unwrap());
        answer.recv_timeout(patience).expect("another thread is held up");

        go_on.send(()).unwrap();
        let second = second.recv_timeout(patience).unwrap().unwrap();
        assert_ne!(first.address(), second.address());
    }
}
