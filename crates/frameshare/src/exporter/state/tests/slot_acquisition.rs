// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots of new frames.

use crate::{
    Endpoint, Wait,
    exporter::{
        Config, Exporter, Purpose, delivery::download_target, resources::Resources, slot::SlotAllocator,
    },
    memory::{Allocation, Allocator, MemoryError, host::Host},
};
use frameshare_core::exporter::{
    slot::{self, Generation, Vacancy},
    state::State,
    system::System as _,
};
use frameshare_protocol::MemoryKind;
use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// The least size of a slot in bytes.
const PAGE: u64 = 4096;

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
        let place = |state: &mut State<Resources>| match state.place(100, slot::Purpose::Copy).unwrap() {
            Vacancy::Unallocated(slot) => slot,
            Vacancy::Free(slot) => panic!("{slot:?} is there already"),
        };
        let (early, late) = (place(state), place(state));
        let allocator = state.system().allocator(MemoryKind::Host).unwrap();
        let mut overflow = Generation::overflow(9, PAGE, MemoryKind::Host, allocator);
        (0..3).for_each(|_| _ = overflow.add(memory(), state.system(), Instant::now()));
        state.slots_mut().generations_mut().push(overflow);
        assert!(state.add(&early, memory()).is_some());
        assert!(state.add(&late, memory()).is_none(), "a fifth slot");
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
        state.slots_mut().generations_mut()[0].set_allocator(SlotAllocator::of(Arc::new(slow)));
        state.slots_mut().keep_host_generation();
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
        state.slots_mut().generations_mut()[0].set_allocator(SlotAllocator::of(Arc::new(slow)));
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
