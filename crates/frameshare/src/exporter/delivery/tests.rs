// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers are polled once a frame, by `acquire` or by `publish`: releases and false claims are
//! found by whichever of them it is. Without memory, present slots are used again.

use crate::{
    Endpoint, Interrupt, MemoryKind, Wait,
    exporter::{AcquireError, Config, Exporter, Frame, Purpose, Slot},
    fence::Written,
    memory::{MemoryError, Operation},
    reader::{self, Item, Reader},
};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const SIZE: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

struct Stream {
    _folder: tempfile::TempDir,
    exporter: Exporter,
    endpoint: Endpoint,
    interrupt: Interrupt,
    /// Number of frames whose last lease has ended.
    ended: Arc<AtomicUsize>,
}

/// User data of a frame.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Stream {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
        let (interrupt, ended) = (Interrupt::new().unwrap(), Arc::default());
        Self { _folder: folder, exporter, endpoint, interrupt, ended }
    }

    fn reader(&self) -> Reader {
        Reader::connect(&self.endpoint, reader::Config::default(), &self.interrupt).unwrap()
    }

    fn acquire(&self) -> Slot {
        self.exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap()
    }

    fn publish(&self, slot: &Slot) {
        let keep: Box<dyn std::any::Any + Send> = Box::new(Counted(self.ended.clone()));
        let frame = Frame { keep: Some(keep), ..Frame::new(slot, SIZE, Written::Cpu) };
        self.exporter.publish(frame, Wait::Forever).unwrap();
    }

    /// Takes a frame, which the caller holds.
    fn take(&self, reader: &mut Reader) -> reader::Frame {
        loop {
            match reader.next(Some(PATIENCE), &self.interrupt).unwrap() {
                Some(Item::Frame(frame)) => return frame,
                Some(_) => {}
                None => panic!("no frame has arrived"),
            }
        }
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }

    /// Lets the first reader have written false claims of its untaken frames.
    fn falsify_claims(&self) {
        self.exporter.locked(|state| state.readers().present().first().unwrap().leases.falsify_claims());
    }
}

/// Returns how many leases have ended after each of four calls.
fn leases_ended_by_calls() -> [usize; 4] {
    let stream = Stream::new();
    let mut reader = stream.reader();
    let first = stream.acquire();
    stream.publish(&first);
    drop(stream.take(&mut reader));
    // The only slot is in use: the readers are polled for another one.
    let second = stream.acquire();
    let by_acquisition = stream.ended();
    stream.publish(&second);
    drop(stream.take(&mut reader));
    // Nothing was acquired: the publication polls the readers.
    stream.publish(&second);
    let by_publication = stream.ended();
    drop(stream.take(&mut reader));
    drop(first);
    // A slot is free.
    drop(stream.acquire());
    let by_free_acquisition = stream.ended();
    stream.publish(&second);
    [by_acquisition, by_publication, by_free_acquisition, stream.ended()]
}

#[test]
fn release_is_found_once_a_frame() {
    // The service thread polls readers as well when they have just joined. It may then be the one
    // that drops the user data, before or after the call that would have done so.
    let runs = [(); 5].map(|()| leases_ended_by_calls());
    assert!(runs.contains(&[1, 2, 2, 3]), "{runs:?}");
}

#[test]
fn false_claim_is_found_when_slot_is_acquired() {
    let stream = Stream::new();
    let (_hostile, mut honest) = (stream.reader(), stream.reader());
    let slot = stream.acquire();
    stream.publish(&slot);
    let held = stream.take(&mut honest);
    stream.falsify_claims();
    let second = stream.acquire();
    assert_eq!((stream.exporter.reader_count(), stream.ended()), (1, 0), "the honest one has a lease");
    assert_ne!(second.0.id, slot.0.id);
    drop(held);
    stream.publish(&second);
    drop(stream.take(&mut honest));
}

#[test]
fn false_claim_is_found_by_publication() {
    let stream = Stream::new();
    let (_hostile, mut honest) = (stream.reader(), stream.reader());
    let (first, second) = (stream.acquire(), stream.acquire());
    stream.publish(&first);
    let held = stream.take(&mut honest);
    stream.falsify_claims();
    stream.publish(&second);
    assert_eq!((stream.exporter.reader_count(), stream.ended()), (1, 0));
    drop((held, stream.take(&mut honest)));
}

/// A claim that changes behind the poll of its frame: the lease goes on until the next one.
#[test]
fn false_claim_behind_poll_ends_no_lease() {
    let stream = Stream::new();
    let (_hostile, mut honest) = (stream.reader(), stream.reader());
    let first = stream.acquire();
    stream.publish(&first);
    let held = stream.take(&mut honest);
    let second = stream.acquire();
    assert_ne!(second.0.id, first.0.id, "the readers were polled");
    stream.falsify_claims();
    stream.publish(&second);
    assert_eq!((stream.exporter.stats().readers.len(), stream.ended()), (1, 0), "stats() polls, too");
    drop(held);
    stream.exporter.reclaim();
    assert_eq!(stream.ended(), 1);
    drop(stream.take(&mut honest));
}

/// Waits for a slot as after an attempt for which there was no memory.
fn wait_without_memory(stream: &Stream, size: u64, wait: Wait) -> Result<Slot, AcquireError> {
    let cause = io::Error::from(io::ErrorKind::OutOfMemory);
    let error = MemoryError::new(Operation::Allocate, size, MemoryKind::Host, cause);
    stream.exporter.wait_for_slot(size, error.into(), wait.into())
}

#[test]
fn exhausted_memory_reuses_large_enough_slots() {
    let stream = Stream::new();
    let wait = |size| wait_without_memory(&stream, size, Wait::Forever);
    assert!(matches!(wait(SIZE), Err(AcquireError::Memory(_))), "there is none at all");
    let slot = stream.acquire();
    let held = slot.size();
    drop(slot);
    assert_eq!(wait(SIZE).unwrap().size(), held);
    assert!(matches!(wait(held + 1), Err(AcquireError::Memory(_))), "it is too small");
    let _held = stream.acquire();
    let begin = Instant::now();
    let waited = wait_without_memory(&stream, SIZE, Wait::For(Duration::from_millis(10)));
    assert!(matches!(waited, Err(AcquireError::Memory(_))), "{waited:?}");
    assert!(begin.elapsed() < Config::default().reader_timeout);
}

#[test]
fn slot_waiter_gets_first_released_slot() {
    let stream = Stream::new();
    let wait = || {
        let begin = Instant::now();
        wait_without_memory(&stream, SIZE, Wait::Forever).unwrap();
        begin.elapsed()
    };
    let later = |what: Box<dyn Send>| {
        thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            drop(what);
        })
    };
    let limit = Config::default().reader_timeout;
    // Neither sends a wake-up: an upstream holder of a slot, and a `latest` reader.
    let upstream = later(Box::new(stream.exporter.acquire(SIZE, Purpose::Pool, Wait::No).unwrap()));
    assert!(wait() < limit);
    upstream.join().unwrap();
    let mut reader = stream.reader();
    stream.publish(&stream.acquire());
    let reading = later(Box::new(stream.take(&mut reader)));
    assert!(wait() < limit);
    reading.join().unwrap();
}
