// SPDX-License-Identifier: MIT OR Apache-2.0

//! Adopted memory.

use crate::{
    Endpoint, Interrupt, Wait,
    exporter::{Config, Exporter, Frame, InvalidFrame, PublishError, Slot, slot::AdoptedId},
    fence::Written,
    memory::{Allocator as _, host::Host},
    reader::{self, Item, Reader},
};
use frameshare_protocol::{MemoryKind, Sequence};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const SIZE: u64 = 4096;

/// Returns the slot of memory of another component, for which host memory stands in.
fn adopted(exporter: &Exporter) -> Slot {
    let memory = Host::default().allocate(SIZE).unwrap();
    exporter
        .locked(|state| state.adopt(MemoryKind::Host, memory, SIZE, AdoptedId::Cuda(1)))
        .expect("the stream is open")
}

fn publish(exporter: &Exporter, slot: &Slot) -> Result<Sequence, PublishError> {
    exporter.publish(Frame::new(slot, SIZE, Written::Cpu), Wait::Forever)
}

fn take(reader: &mut Reader) -> Sequence {
    match reader.next(Some(PATIENCE), &Interrupt::new().unwrap()).unwrap() {
        Some(Item::Frame(frame)) => frame.descriptor().sequence,
        other => panic!("{other:?}"),
    }
}

/// Before and after the reader has acknowledged the retirement.
#[test]
fn retired_slot_is_refused_and_readers_go_on() {
    for acknowledges in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let exporter = Exporter::bind(&endpoint, Config::default(), drop).unwrap();
        let interrupt = Interrupt::new().unwrap();
        let mut reader = Reader::connect(&endpoint, reader::Config::default(), &interrupt).unwrap();
        let start = Instant::now();
        let wait_until = |what: &str, condition: &mut dyn FnMut() -> bool| {
            while !condition() {
                assert!(start.elapsed() < PATIENCE, "{what}");
            }
        };
        wait_until("no reader", &mut || exporter.reader_count() == 1);
        let slot = adopted(&exporter);
        assert_eq!(publish(&exporter, &slot), Ok(Sequence(1)));
        assert_eq!(take(&mut reader), Sequence(1));
        exporter.retire_adopted();
        if acknowledges {
            wait_until("no acknowledgement", &mut || {
                assert!(reader.next(Some(Duration::ZERO), &interrupt).unwrap().is_none());
                exporter.locked(|state| state.readers()[0].imports.generations().count() == 0)
            });
        }
        let refused = Err(PublishError::Invalid(InvalidFrame::Retired));
        assert_eq!(publish(&exporter, &slot), refused, "acknowledged: {acknowledges}");
        // Adopted again, it is of another generation.
        assert_eq!(publish(&exporter, &adopted(&exporter)), Ok(Sequence(2)));
        assert_eq!(take(&mut reader), Sequence(2));
    }
}
