// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams of one process share a service thread. Each test blocks the background work of one of
//! them and shows that the others are served meanwhile.

use crate::{
    Endpoint, Interrupt, Policy,
    exporter::{Config, Exporter, Frame, Notice, Purpose, Slot, SlowReaders},
    fence::Written,
    observer::Observer,
    reader::{self, Item, Reader},
    sys::{Timeout, is_ready, wait},
};
use rustix::event::{PollFd, PollFlags};
use std::{
    sync::{
        Mutex,
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
struct Blocker {
    begun: Sender<()>,
    released: Mutex<Receiver<()>>,
}

/// The test's side of a blocker.
struct Blocked {
    begun: Receiver<()>,
    release: Sender<()>,
}

fn blocker() -> (Blocker, Blocked) {
    let (begun, has_begun) = channel();
    let (release, released) = channel();
    (Blocker { begun, released: Mutex::new(released) }, Blocked { begun: has_begun, release })
}

impl Blocker {
    fn block(&self) {
        let _ = self.begun.send(());
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
        self.begun.recv_timeout(PATIENCE).expect("the thread gets there");
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
        let slot = self.exporter.acquire(SIZE, Purpose::Copy).unwrap();
        self.publish_slot(&slot, keep);
    }

    fn publish_slot(&self, slot: &Slot, keep: Option<Blocker>) {
        let keep = keep.map(|keep| Box::new(keep) as _);
        let frame = Frame { keep, ..Frame::new(slot, SIZE, Written::Cpu) };
        self.exporter.publish(frame, &Interrupt::new().unwrap()).unwrap();
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
    slow.exporter.locked(|state| state.trash.push(Box::new(blocker)));
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
    let mut slots: Vec<_> = (0..8).map(|_| slow.exporter.acquire(SIZE, Purpose::Copy).unwrap()).collect();
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

/// The user data of a frame may own exporters: its own one, and that of another stream.
#[test]
fn exporters_may_be_dropped_by_background_work() {
    let (first, second, third) = (Stream::new(), Stream::new(), Stream::new());
    let mut reader = first.reader();
    let Stream { exporter, endpoint, _folder } = first;
    let slot = exporter.acquire(SIZE, Purpose::Copy).unwrap();
    let (done, is_done) = channel::<()>();
    let keep = (exporter.clone(), second.exporter, done);
    let frame = Frame { keep: Some(Box::new(keep)), ..Frame::new(&slot, SIZE, Written::Cpu) };
    exporter.publish(frame, &Interrupt::new().unwrap()).unwrap();
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
    let link = state.links().next().expect("the reader was admitted");
    link.wake().ring();
}

#[test]
fn wake_up_follows_the_unlocking_of_the_state() {
    let stream = Stream::new();
    let mut reader = stream.reader();
    // Drains the wake-ups of the first messages.
    while reader.try_next().unwrap().is_some() {}
    let is_woken = || {
        let mut fds = [PollFd::new(&reader, PollFlags::IN)];
        wait(&mut fds, Timeout::after(Some(Duration::ZERO))).unwrap();
        is_ready(&fds[0])
    };
    let state = stream.exporter.0.shared.lock();
    state.links().next().expect("the reader was admitted").wake_up();
    assert!(!is_woken(), "the reader is woken before the state is unlocked");
    drop(state);
    assert!(is_woken());
}

#[test]
fn sleeping_reader_is_asked_for_unused_slots_after_the_unlocking() {
    let stream = Stream::new();
    let mut reader = stream.reader();
    let slots: Vec<_> = (0..8).map(|_| stream.exporter.acquire(SIZE, Purpose::Copy).unwrap()).collect();
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
