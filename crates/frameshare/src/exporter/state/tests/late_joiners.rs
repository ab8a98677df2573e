// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that join later.

use crate::{
    Endpoint, Interrupt, Wait,
    exporter::{Config, Exporter, Frame, History, Purpose, Slot},
    fence::Written,
    reader::{self, Item, Reader},
};
use std::{
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(60);

fn publish(exporter: &Exporter, slot: &Slot) {
    exporter.publish(Frame::new(slot, 1000, Written::Cpu), Wait::Forever).unwrap();
}

fn take(reader: &mut Reader) -> u64 {
    match reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap() {
        Some(Item::Frame(frame)) => frame.descriptor().sequence.0,
        other => panic!("{other:?}"),
    }
}

/// A reader that joins after the retirement gets the kept frame, and then the request for its
/// memory.
#[test]
fn kept_frame_of_retired_memory_is_requested_back() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
    let mut config = Config::default().history(History::Frames(1));
    config.history_pause = Duration::ZERO;
    let exporter = Exporter::bind(&endpoint, config, drop).unwrap();
    publish(&exporter, &exporter.acquire(1000, Purpose::Copy, Wait::No).unwrap());
    let larger = exporter.acquire(100_000, Purpose::Copy, Wait::No).unwrap();
    assert!(exporter.locked(|state| state.slots().generations()[0].retired), "of the kept frame");
    let mut reader =
        Reader::connect(&endpoint, reader::Config::default(), &Interrupt::new().unwrap()).unwrap();
    let retired =
        |exporter: &Exporter| exporter.locked(|state| state.slots().retired().keys().copied().collect());
    assert_eq!((take(&mut reader), retired(&exporter)), (1, vec![1]), "it counts against the reader");
    publish(&exporter, &larger);
    assert_eq!(take(&mut reader), 2);
    let (imported, begin) = (|exporter: &Exporter| imports(exporter), Instant::now());
    while imported(&exporter) != [2] {
        assert!(begin.elapsed() < PATIENCE, "it imports {:?}", imported(&exporter));
        thread::sleep(Duration::from_millis(1));
    }
    exporter.reclaim();
    assert!(retired(&exporter).is_empty());
}

/// The generations that the only reader imports.
fn imports(exporter: &Exporter) -> Vec<u32> {
    exporter.locked(|state| state.readers()[0].imports.generations().collect())
}
