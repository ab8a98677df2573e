// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams of one process share a service thread. Each test blocks the background work of one of
//! them and shows that the others are served meanwhile.

mod adoption;
mod backlogs;
mod late_joiners;
mod slot_acquisition;
mod trimming;

use crate::{
    Endpoint, Interrupt, Policy, Wait,
    exporter::{Config, Exporter, Frame, Notice, Purpose, Slot, SlowReaders, service::stall},
    fence::{ExporterFence, FenceError, FenceState, Signals, Written},
    memory::{Address, Allocation, Handle, select::Selected},
    observer::Observer,
    reader::{self, Item, Reader},
    service::holds_baton,
    sys::{Timeout, is_ready, wait},
};
use frameshare_core::exporter::{slot::Unallocated, system::System as _};
use frameshare_protocol::{EntryIndex, FenceKind, MemoryKind, Sequence};
use rustix::event::{PollFd, PollFlags};
use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::{Duration, Instant},
};

/// Longer than any step takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Size in bytes of the frames.
const SIZE: u64 = 1000;

/// An exporter in a folder of its own.
struct Stream {
    exporter: Exporter,
    endpoint: Endpoint,
    _folder: tempfile::TempDir,
}

/// Blocks the thread that drops it until it is released.
#[derive(Debug)]
struct Blocker {
    /// Gets whether the thread holds the baton.
    begun: Sender<bool>,
    released: Mutex<Receiver<()>>,
}

/// The test's side of a blocker.
struct Blocked {
    begun: Receiver<bool>,
    release: Sender<()>,
}

fn blocker() -> (Blocker, Blocked) {
    let (begun, has_begun) = channel();
    let (release, released) = channel();
    (Blocker { begun, released: Mutex::new(released) }, Blocked { begun: has_begun, release })
}

impl Blocker {
    fn block(&self) {
        let _ = self.begun.send(holds_baton());
        let _ = self.released.lock().unwrap().recv();
    }
}

impl Drop for Blocker {
    fn drop(&mut self) {
        self.block();
    }
}

impl Blocked {
    /// Waits until the blocker blocks.
    fn wait(&self) {
        assert!(!self.holds_baton(), "other streams wait for this thread");
    }

    /// Waits until the blocker blocks. Returns whether its thread holds the baton then.
    fn holds_baton(&self) -> bool {
        self.begun.recv_timeout(PATIENCE).expect("the thread gets there")
    }
}

impl Stream {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(on_notice: impl Fn(Notice) + Send + Sync + 'static) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let config = Config::default().slow_readers(SlowReaders::QueueThenWait);
        let exporter = Exporter::bind(&endpoint, config, on_notice).unwrap();
        Self { exporter, endpoint, _folder: folder }
    }

    fn reader(&self) -> Reader {
        let config = reader::Config::default().policy(Policy::Lossless).max_held(1);
        Reader::connect(&self.endpoint, config, &Interrupt::new().unwrap()).unwrap()
    }

    fn publish(&self, keep: Option<Blocker>) {
        let slot = self.exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        self.publish_slot(&slot, keep);
    }

    fn publish_slot(&self, slot: &Slot, keep: Option<Blocker>) {
        let keep = keep.map(|keep| Box::new(keep) as _);
        let frame = Frame { keep, ..Frame::new(slot, SIZE, Written::Cpu) };
        self.exporter.publish(frame, Wait::Forever).unwrap();
    }

    /// Needs background work at each step: a reader is admitted, gets frames that waited for its
    /// credit, and leaves; an observer gets a snapshot.
    fn assert_is_served(&self) {
        self.assert_is_served_beside(0);
    }

    /// The same beside this number of readers, which have room for four frames.
    fn assert_is_served_beside(&self, others: usize) {
        let mut reader = self.reader();
        (0..4).for_each(|_| self.publish(None));
        for _ in 0..4 {
            let frame = reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap();
            assert!(matches!(frame, Some(Item::Frame(_))), "{frame:?}");
        }
        let observer = Observer::connect(&self.endpoint, PATIENCE).unwrap();
        assert_eq!(observer.latest().readers.len(), others + 1);
        drop(reader);
        let end = Instant::now() + PATIENCE;
        while self.exporter.reader_count() > others {
            assert!(Instant::now() < end, "its end is not noticed");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Asserts that other streams are served, opened and closed.
fn assert_others_go_on(other: Stream) {
    other.assert_is_served();
    drop(other);
    Stream::new().assert_is_served();
}

#[test]
fn memory_that_is_slow_to_free_delays_no_other_stream() {
    let (slow, other) = (Stream::new(), Stream::new());
    let (blocker, blocked) = blocker();
    slow.exporter.locked(|state| state.deferred_mut().drop_resource(blocker));
    blocked.wait();
    assert_others_go_on(other);
    drop(blocked.release);
    slow.assert_is_served();
}

#[test]
fn user_data_that_blocks_when_dropped_delays_no_other_stream() {
    let (slow, other) = (Stream::new(), Stream::new());
    let mut reader = slow.reader();
    let (blocker, blocked) = blocker();
    slow.publish(Some(blocker));
    assert!(reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap().is_some());
    // The background work ends the lease.
    drop(reader);
    blocked.wait();
    assert_others_go_on(other);
    drop(blocked.release);
    slow.assert_is_served();
}

#[test]
fn notice_handler_that_blocks_delays_no_stream() {
    let (blocker, blocked) = blocker();
    let slow = Stream::with(move |_| blocker.block());
    let _reader =
        Reader::connect(&slow.endpoint, reader::Config::default(), &Interrupt::new().unwrap()).unwrap();
    blocked.wait();
    assert_others_go_on(Stream::new());
    slow.assert_is_served_beside(1);
    drop(blocked.release);
}

#[test]
fn unused_slot_that_is_slow_to_free_delays_no_other_stream() {
    let (slow, other) = (Stream::new(), Stream::new());
    let reader = slow.reader();
    let (blocker, blocked) = blocker();
    let mut slots: Vec<_> =
        (0..8).map(|_| slow.exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap()).collect();
    // Dropped with the slot's memory.
    let last = slots.pop().unwrap();
    assert!(last.keep_with_slot(|| blocker).is_some());
    drop((slots, last));
    slow.exporter.locked(|state| state.trim_unused_since(Some(Instant::now())));
    assert!(slow.exporter.stats().slots < 8);
    blocked.wait();
    assert_others_go_on(other);
    drop((blocked.release, reader));
    slow.assert_is_served();
}

/// A thread that calls a driver with the state locked: the admission of a reader, the snapshot of
/// an observer and the end of a connection wait for it.
#[test]
fn state_locked_for_long_delays_no_other_stream() {
    let (slow, other) = (Stream::new(), Stream::new());
    let leaving = slow.reader();
    let (blocker, blocked) = blocker();
    thread::scope(|scope| {
        let locking = scope.spawn(|| slow.exporter.locked(|_| blocker.block()));
        blocked.wait();
        drop(leaving);
        let joining = scope.spawn(|| slow.reader());
        let observing = scope.spawn(|| Observer::connect(&slow.endpoint, PATIENCE).unwrap());
        assert_others_go_on(other);
        assert!(!joining.is_finished() && !observing.is_finished() && !locking.is_finished());
        drop(blocked.release);
        joining.join().unwrap();
        observing.join().unwrap();
    });
    // It blocks when it is dropped, too, and was released.
    slow.assert_is_served();
}

#[test]
fn admission_that_waits_for_memory_delays_no_other_stream() {
    let (slow, other) = (Stream::new(), Stream::new());
    let (blocker, blocked) = blocker();
    stall::set(slow.exporter.0.shared.id, move || blocker.block());
    thread::scope(|scope| {
        let joining = scope.spawn(|| slow.reader());
        blocked.wait();
        assert_others_go_on(other);
        assert!(!joining.is_finished());
        drop(blocked.release);
        joining.join().unwrap();
    });
    slow.assert_is_served();
}

/// Memory whose size takes a call that blocks, as those of a driver may.
#[derive(Debug)]
struct SlowMemory(Arc<dyn Allocation>, Blocker);

impl Allocation for SlowMemory {
    fn address(&self) -> Address {
        self.0.address()
    }

    fn size(&self) -> u64 {
        if thread::current().name() == Some("frameshare") {
            self.1.block();
        }
        self.0.size()
    }

    fn handle(&self) -> Handle<'_> {
        self.0.handle()
    }
}

#[test]
fn snapshot_that_takes_long_delays_no_other_stream() {
    let (slow, other) = (Stream::new(), Stream::new());
    let (blocker, blocked) = blocker();
    let slot = slow.exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    slow.exporter.locked(|state| {
        let memory = Arc::new(SlowMemory(slot.0.memory.clone(), blocker));
        let allocator = state.system().allocator(MemoryKind::Host).unwrap();
        let place = Unallocated { generation: slot.0.id.generation, allocator, slot_size: SIZE };
        state.add(&place, memory).expect("there is room");
    });
    thread::scope(|scope| {
        let observing = scope.spawn(|| Observer::connect(&slow.endpoint, PATIENCE).unwrap());
        blocked.wait();
        assert_others_go_on(other);
        assert!(!observing.is_finished());
        drop(blocked.release);
        observing.join().unwrap();
    });
}

/// A release whose poll is a driver call that does not return.
#[derive(Debug)]
struct HangingFence(Blocker);

impl ExporterFence for HangingFence {
    fn kind(&self) -> FenceKind {
        FenceKind::Event
    }

    fn signal_ready(&mut self, _: EntryIndex, _: Sequence, _: &mut Signals) -> Result<(), FenceError> {
        Ok(())
    }

    fn poll_released(&mut self, _: EntryIndex, _: Sequence) -> Result<FenceState, FenceError> {
        self.0.block();
        Ok(FenceState::Ready)
    }
}

/// Has the service thread poll a release in a hanging call, and returns its reader.
fn hang_in_a_gpu_call(slow: &Stream, blocker: Blocker, has_gpu: bool) -> Reader {
    let mut reader = slow.reader();
    slow.publish(None);
    let frame = reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap();
    let choice = Selected { kind: FenceKind::Event, why: String::new() };
    slow.exporter.locked(|state| {
        let leases = &mut state.readers_mut()[0].leases;
        leases.set_fence(Box::new(HangingFence(blocker)), choice);
        leases.fence_all();
    });
    if has_gpu {
        slow.exporter.0.shared.note_gpu();
    }
    drop(frame);
    slow.exporter.0.shared.service.wake();
    reader
}

#[test]
fn gpu_call_that_hangs_delays_no_other_stream() {
    let (slow, other) = (Stream::new(), Stream::new());
    let (blocker, blocked) = blocker();
    let _reader = hang_in_a_gpu_call(&slow, blocker, true);
    blocked.wait();
    assert_others_go_on(other);
    drop(blocked.release);
    slow.assert_is_served_beside(1);
}

/// Control: the exporter is not known to have a GPU, so its turn keeps the baton. The turn that
/// admitted the reader has lent it, and can be the one that polls.
#[test]
fn gpu_call_of_unknown_gpu_holds_baton() {
    let holds = (0..20).any(|_| {
        let slow = Stream::new();
        let (blocker, blocked) = blocker();
        let _reader = hang_in_a_gpu_call(&slow, blocker, false);
        let holds = blocked.holds_baton();
        drop(blocked.release);
        slow.assert_is_served_beside(1);
        holds
    });
    assert!(holds);
}

/// The user data of a frame may own exporters: its own one, and that of another stream.
#[test]
fn exporters_may_be_dropped_by_background_work() {
    let (first, second, third) = (Stream::new(), Stream::new(), Stream::new());
    let mut reader = first.reader();
    let Stream { exporter, endpoint, _folder } = first;
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    let (done, is_done) = channel::<()>();
    let keep = (exporter.clone(), second.exporter, done);
    let frame = Frame { keep: Some(Box::new(keep)), ..Frame::new(&slot, SIZE, Written::Cpu) };
    exporter.publish(frame, Wait::Forever).unwrap();
    drop((slot, exporter));
    assert!(reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap().is_some());
    drop(reader);
    assert!(
        is_done
            .recv_timeout(PATIENCE)
            .is_err_and(|error| error == std::sync::mpsc::RecvTimeoutError::Disconnected)
    );
    third.assert_is_served();
    // The names are free.
    let bind = |endpoint: &Endpoint| Exporter::bind(endpoint, Config::default(), drop);
    let end = Instant::now() + PATIENCE;
    while bind(&endpoint).and(bind(&second.endpoint)).is_err() {
        assert!(Instant::now() < end, "a name is in use");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Control of the rule that readers are woken with the state unlocked, which each wake-up of a
/// build with debug assertions checks: here it is broken.
#[cfg(debug_assertions)]
#[test]
#[should_panic(expected = "a wake-up is sent with the state locked")]
fn wake_up_with_the_state_locked_panics() {
    let stream = Stream::new();
    let _reader = stream.reader();
    let state = stream.exporter.0.shared.lock();
    let link = state.readers().present().first().expect("the reader was admitted");
    link.connection().wake().ring();
}

#[test]
fn wake_up_follows_the_unlocking_of_the_state() {
    let stream = Stream::new();
    let mut reader = stream.reader();
    let is_woken = |reader: &Reader| {
        let mut fds = [PollFd::new(reader, PollFlags::IN)];
        wait(&mut fds, Timeout::after(Some(Duration::ZERO))).unwrap();
        is_ready(&fds[0])
    };
    // The service thread admits this one after it has sent all wake-ups of the first.
    let _second = stream.reader();
    while reader.try_next().unwrap().is_some() {}
    let mut state = stream.exporter.0.shared.lock();
    state.readers_mut().present_mut().first_mut().expect("the reader was admitted").wake_up();
    assert!(!is_woken(&reader), "the reader is woken before the state is unlocked");
    drop(state);
    assert!(is_woken(&reader));
}

#[test]
fn sleeping_reader_is_asked_for_unused_slots_after_the_unlocking() {
    let stream = Stream::new();
    let mut reader = stream.reader();
    let slots: Vec<_> =
        (0..8).map(|_| stream.exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap()).collect();
    for slot in &slots {
        stream.publish_slot(slot, None);
        let frame = reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap();
        assert!(matches!(frame, Some(Item::Frame(_))), "{frame:?}");
    }
    drop(slots);
    stream.exporter.reclaim();
    // From now on the reader needs wake-ups.
    assert!(reader.try_next().unwrap().is_none());
    stream.exporter.locked(|state| state.trim_unused_since(Some(Instant::now())));
    assert!(stream.exporter.stats().trimmed_slots > 0);
    let mut fds = [PollFd::new(&reader, PollFlags::IN)];
    wait(&mut fds, Timeout::after(Some(PATIENCE))).unwrap();
    assert!(is_ready(&fds[0]), "the reader is not woken");
}
