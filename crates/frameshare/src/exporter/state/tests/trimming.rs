// SPDX-License-Identifier: MIT OR Apache-2.0

//! Trimming.

use crate::{
    Endpoint, Interrupt, Policy, Wait,
    exporter::{Config, Exporter, Frame, History, Purpose, Slot},
    fence::Written,
    reader::{self, Item, Reader},
};
use frameshare_core::exporter::{ending::Ending, state::SPARE};
use frameshare_protocol::{MemoryKind, SlotId, message::Reason};
use std::time::{Duration, Instant};

const SIZE: u64 = 10_000;
/// With the descriptors of a `Welcome`, as many as may be in flight: frames after them would be
/// lost.
const BURST: usize = 11;

struct Stream {
    _folder: tempfile::TempDir,
    endpoint: Endpoint,
    exporter: Exporter,
    interrupt: Interrupt,
}

impl Stream {
    fn new(config: Config) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, config, drop).unwrap();
        exporter.set_history(History::Frames(0)).unwrap();
        Self { _folder: folder, endpoint, exporter, interrupt: Interrupt::new().unwrap() }
    }

    fn reader(&self) -> Reader {
        let before = self.exporter.stats().readers_total;
        let config = reader::Config::default().policy(Policy::Latest).max_held(4);
        let reader = Reader::connect(&self.endpoint, config, &self.interrupt).unwrap();
        while self.exporter.stats().readers_total == before {
            std::thread::yield_now();
        }
        reader
    }

    fn publish(&self, slot: &Slot) {
        self.exporter.publish(Frame::new(slot, SIZE, Written::Cpu), Wait::Forever).unwrap();
    }

    /// Publishes frames in so many slots at once.
    fn burst(&self) {
        let slots: Vec<_> =
            (0..BURST).map(|_| self.exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap()).collect();
        slots.iter().for_each(|slot| self.publish(slot));
    }

    /// Takes what has arrived, the last frame of it too.
    fn read(&self, reader: &mut Reader) -> Vec<SlotId> {
        let mut slots = Vec::new();
        while let Some(item) = reader.next(Some(Duration::ZERO), &self.interrupt).unwrap() {
            if let Item::Frame(frame) = item {
                slots.push(frame.descriptor().slot);
            }
        }
        slots
    }

    /// Trims as if all free slots were unused for long. Returns the number of trimmed ones.
    fn trim(&self) -> u64 {
        self.exporter.locked(|state| {
            state.reclaim();
            let before = state.slots().trimmed();
            state.trim_unused_since(Some(Instant::now()));
            state.slots().trimmed() - before
        })
    }

    /// Waits until readers have acknowledged everything.
    fn acknowledged(&self, readers: &mut [&mut Reader]) {
        let start = Instant::now();
        while self
            .exporter
            .locked(|state| state.readers().present().iter().any(|link| link.imports.retired_slots() > 0))
        {
            readers.iter_mut().for_each(|reader| _ = self.read(reader));
            assert!(start.elapsed() < Duration::from_secs(60), "no acknowledgement");
        }
    }
}

fn least(stream: &Stream) -> u32 {
    stream.exporter.locked(|state| state.reserve() + SPARE)
}

#[test]
fn slots_of_a_burst_are_retired_and_the_stream_goes_on() {
    let stream = Stream::new(Config::default());
    let mut reader = stream.reader();
    let (mut highest, least) = (0, least(&stream));
    for _ in 0..3 {
        stream.burst();
        let slots = stream.read(&mut reader);
        assert!(!slots.is_empty());
        let trimmed = stream.trim();
        let stats = stream.exporter.stats();
        assert_eq!((u64::from(stats.slots) + trimmed, stats.slots), (BURST as u64, least));
        // Numbers of slots are not used again.
        let last = stream.exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        stream.publish(&last);
        assert!(stream.read(&mut reader).iter().all(|slot| slot.index < least));
        let found = slots.iter().map(|slot| slot.index).max().unwrap();
        assert!(found > highest, "{found}");
        highest = found;
        stream.acknowledged(&mut [&mut reader]);
    }
    assert_eq!(reader.stats().lost + reader.stats().received, 3 * BURST as u64 + 3);
}

#[test]
fn slots_in_use_and_recently_used_ones_stay() {
    let stream = Stream::new(Config::default());
    let mut reader = stream.reader();
    stream.burst();
    let held: Vec<_> =
        (0..8).map(|_| stream.exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap()).collect();
    stream.read(&mut reader);
    let unused_since = |since: Instant| {
        stream.exporter.reclaim();
        stream.exporter.locked(|state| state.trim_unused_since(Some(since)));
        stream.exporter.stats().slots
    };
    let before = Instant::now();
    assert_eq!(unused_since(before), 8);
    // The check has seen these in use, after `before`.
    drop(held);
    assert_eq!(unused_since(before), 8);
    stream.acknowledged(&mut [&mut reader]);
    assert_eq!(unused_since(Instant::now()), least(&stream));
}

/// A reader that does not receive is never asked for more than it may keep.
#[test]
fn paused_reader_keeps_a_bounded_number_of_slots() {
    let stream = Stream::new(Config::default().max_retired_bytes(3 * 12_288));
    let mut paused = stream.reader();
    stream.burst();
    assert_eq!((stream.trim(), stream.trim()), (3, 0));
    assert_eq!(stream.exporter.stats().slots, BURST as u32 - 3);
    // Other slots than its own are trimmed.
    paused.next(Some(Duration::ZERO), &stream.interrupt).unwrap();
    stream.acknowledged(&mut [&mut paused]);
    assert_eq!((stream.trim(), stream.exporter.stats().readers.len()), (3, 1));
}

/// Memory of legacy and pool.
#[test]
fn memory_that_imports_must_leave_first_waits_for_each_reader() {
    let stream = Stream::new(Config::default());
    let mut readers = [stream.reader(), stream.reader()];
    stream.burst();
    readers.iter_mut().for_each(|reader| _ = stream.read(reader));
    stream.exporter.locked(|state| {
        state.slots_mut().pretend(MemoryKind::Legacy);
    });
    let trimmed = stream.trim();
    let bytes = trimmed * 12_288;
    assert_eq!(stream.exporter.stats().retired_bytes, bytes);
    let [first, second] = &mut readers;
    let start = Instant::now();
    while stream.exporter.locked(|state| state.readers()[0].imports.retired_slots() > 0) {
        stream.read(first);
        assert!(start.elapsed() < Duration::from_secs(60), "no acknowledgement");
    }
    assert_eq!(stream.exporter.stats().retired_bytes, bytes, "the second one has not acknowledged");
    // Evicted, it still has its imports.
    stream.exporter.locked(|state| {
        let index =
            state.readers().present().iter().position(|link| link.imports.retired_slots() > 0).unwrap();
        state.drop_link(index, &Ending::new(Reason::TooSlow, "a test"));
    });
    assert_eq!(stream.exporter.stats().retired_bytes, bytes, "an evicted reader imports it");
    while second.next(Some(Duration::ZERO), &stream.interrupt).is_ok() {}
    readers = [stream.reader(), stream.reader()];
    while stream.exporter.stats().retired_bytes > 0 {
        assert!(start.elapsed() < Duration::from_secs(60), "not freed");
    }
    drop(readers);
}

#[test]
fn unasked_acknowledgement_is_a_violation() {
    let stream = Stream::new(Config::default());
    let mut reader = stream.reader();
    stream.burst();
    let slot = stream.read(&mut reader)[0];
    stream.exporter.locked(|state| {
        let id = state.readers()[0].info.id;
        state.acknowledge_slot(id, slot);
        assert!(state.readers().present().is_empty());
    });
}
