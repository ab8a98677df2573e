//! The slots that share one size and kind of memory.

use super::slot::{AcquireError, Slot, SlotInner};
use crate::memory::{Allocation, Allocator, MemoryError, allocator, foreign::Foreign};
use frameshare_cuda::context::Context;
use frameshare_protocol::MemoryKind;
use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

/// A generation, in the exporter's ledger.
#[derive(Debug)]
pub(super) struct Generation {
    pub id: u32,
    pub slot_size: u64,
    pub kind: MemoryKind,
    pub source: Source,
    slots: Vec<Arc<SlotInner>>,
    /// Readers have been told that nothing more is published in it.
    pub retired: bool,
}

/// Where the slots of a generation come from.
#[derive(Debug)]
pub(super) enum Source {
    /// They are ours.
    Allocated(Arc<dyn Allocator>),
    /// They are somebody else's, found by what CUDA names an allocation by.
    Foreign(BTreeMap<u64, u32>),
}

/// What there is for a frame.
#[derive(Debug)]
pub(super) enum Place {
    /// A slot that nobody holds.
    Free(Slot),
    /// One slot more than there are.
    Unallocated(Unallocated),
}

/// A slot that a generation may have and has not yet. To allocate may wait for the GPU: not with the state locked.
#[derive(Debug)]
pub(super) struct Unallocated {
    pub generation: u32,
    allocator: Arc<dyn Allocator>,
    slot_size: u64,
}

impl Unallocated {
    pub fn allocate(&self) -> Result<Arc<dyn Allocation>, MemoryError> {
        self.allocator.allocate(self.slot_size)
    }
}

impl Generation {
    /// A generation of our own slots.
    pub fn new(
        id: u32,
        slot_size: u64,
        kind: MemoryKind,
        gpu: Option<&Arc<Context>>,
    ) -> Result<Self, MemoryError> {
        let source = Source::Allocated(allocator(kind, gpu)?);
        Ok(Self { id, slot_size, kind, source, slots: Vec::new(), retired: false })
    }

    /// A generation of somebody else's allocations, each of `slot_size` bytes.
    pub fn foreign(id: u32, slot_size: u64) -> Self {
        let source = Source::Foreign(BTreeMap::new());
        Self { id, slot_size, kind: MemoryKind::Legacy, source, slots: Vec::new(), retired: false }
    }

    /// Whether its slots are ours and of this kind.
    pub fn is_own(&self, kind: MemoryKind) -> bool {
        !self.is_foreign() && self.kind == kind
    }

    /// The same, and slots may still be taken from it.
    pub fn is_open(&self, kind: MemoryKind) -> bool {
        self.is_own(kind) && !self.retired
    }

    pub fn is_foreign(&self) -> bool {
        matches!(self.source, Source::Foreign(_))
    }

    /// The slot that an allocation of somebody else's has, if it has one.
    pub fn adopted(&self, buffer_id: u64) -> Option<Slot> {
        let Source::Foreign(known) = &self.source else { return None };
        known.get(&buffer_id).and_then(|index| self.slots.get(*index as usize)).cloned().map(Slot)
    }

    /// Makes a slot of somebody else's allocation.
    pub fn adopt(&mut self, memory: Foreign, buffer_id: u64, exporter: u64) -> Slot {
        let slot = self.add(Arc::new(memory), exporter);
        if let Source::Foreign(known) = &mut self.source {
            known.insert(buffer_id, slot.0.index);
        }
        slot
    }

    /// Makes a slot of fresh memory.
    pub fn add(&mut self, memory: Arc<dyn Allocation>, exporter: u64) -> Slot {
        let (generation, index) = (self.id, self.len());
        let (kept, registered) = (OnceLock::new(), OnceLock::new());
        let slot = Arc::new(SlotInner { exporter, generation, index, kept, registered, memory });
        self.slots.push(slot.clone());
        Slot(slot)
    }

    /// The allocator of our own slots, whose descriptor importers need once for all slots, where the kind has one.
    pub fn pool(&self) -> Option<&Arc<dyn Allocator>> {
        match &self.source {
            Source::Allocated(allocator) => Some(allocator),
            Source::Foreign(_) => None,
        }
    }

    pub fn len(&self) -> u32 {
        self.slots.len() as u32
    }

    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub fn count_free(&mut self) -> u32 {
        self.slots.iter_mut().filter_map(Arc::get_mut).count() as u32
    }

    /// A slot that nobody holds.
    pub fn free(&mut self) -> Option<Slot> {
        // `get_mut` succeeds if ours is the only reference, and orders what the last holder did before.
        let free = self.slots.iter_mut().position(|slot| Arc::get_mut(slot).is_some())?;
        Some(Slot(self.slots[free].clone()))
    }

    /// A slot that nobody holds; where there is none, what one more is made with if there may be more.
    pub fn place(&mut self, max: u32) -> Result<Place, AcquireError> {
        if let Some(free) = self.free() {
            return Ok(Place::Free(free));
        }
        if self.len() >= max {
            return Err(AcquireError::Exhausted { max_slots: max });
        }
        let Source::Allocated(allocator) = &self.source else {
            return Err(AcquireError::Exhausted { max_slots: 0 });
        };
        let (generation, allocator, slot_size) = (self.id, allocator.clone(), self.slot_size);
        Ok(Place::Unallocated(Unallocated { generation, allocator, slot_size }))
    }

    /// How many slots are held by others than the `published` ones, of which each may be held upstream as well.
    pub fn count_held(&mut self, published: impl Fn(u32) -> bool) -> u32 {
        let held =
            self.slots.iter_mut().filter_map(|slot| Arc::get_mut(slot).is_none().then_some(slot.index));
        held.filter(|index| !published(*index)).count() as u32
    }

    /// Whether nobody but publications, of which a slot has `of(slot)`, refers to any slot.
    pub fn is_held_by_publications_alone(&self, of: impl Fn(u32) -> usize) -> bool {
        self.slots.iter().all(|slot| Arc::strong_count(slot) == 1 + of(slot.index))
    }

    /// Forgets the slots that nobody holds, and hands them over to be freed.
    pub fn take_unused(&mut self) -> Vec<Arc<SlotInner>> {
        self.slots.extract_if(.., |slot| Arc::get_mut(slot).is_some()).collect()
    }

    /// Bytes of all slots.
    pub fn bytes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.memory.size()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Endpoint,
        exporter::{Config, Exporter, Purpose},
        memory::host::Host,
    };
    use std::{
        sync::{
            Mutex,
            mpsc::{Receiver, Sender, channel},
        },
        thread,
        time::Duration,
    };

    /// Allocates when it is told to.
    #[derive(Debug)]
    struct Slow {
        begun: Sender<()>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Allocator for Slow {
        fn allocate(&self, size: u64) -> Result<Arc<dyn Allocation>, MemoryError> {
            self.begun.send(()).unwrap();
            self.go_on.lock().unwrap().recv().unwrap();
            Host.allocate(size)
        }
    }

    /// The memory that frames are downloaded to is allocated by the thread that publishes.
    #[test]
    fn allocation_for_a_download_holds_up_no_other_thread() {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
        let _first = exporter.acquire(100, Purpose::Copy).unwrap();
        let (begun, begins) = channel();
        let (go_on, told) = channel();
        exporter.locked(|state| {
            let slow = Slow { begun, go_on: Mutex::new(told) };
            state.generations[0].source = Source::Allocated(Arc::new(slow));
            state.renew_host = false;
        });
        let publisher = exporter.clone();
        let download = thread::spawn(move || crate::exporter::download::allocate(&publisher.0.shared, 100));
        begins.recv_timeout(Duration::from_secs(60)).unwrap();
        let (asked, answer) = channel();
        let asker = exporter.clone();
        thread::spawn(move || asked.send(asker.stats()).unwrap());
        let answer = answer.recv_timeout(Duration::from_secs(60));
        go_on.send(()).unwrap();
        assert!(download.join().unwrap().is_some());
        answer.expect("another thread is held up");
    }

    #[test]
    fn allocating_holds_nobody_up() {
        let patience = Duration::from_secs(60);
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
        // The first begins a generation, whose slots are slow from now on.
        let first = exporter.acquire(100, Purpose::Copy).unwrap();
        let (begun, begins) = channel();
        let (go_on, told) = channel();
        exporter.locked(|state| {
            let slow = Slow { begun, go_on: Mutex::new(told) };
            state.generations[0].source = Source::Allocated(Arc::new(slow));
        });
        let (done, second) = channel();
        let acquirer = exporter.clone();
        thread::spawn(move || done.send(acquirer.acquire(100, Purpose::Copy)).unwrap());
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
