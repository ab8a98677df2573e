// SPDX-License-Identifier: MIT OR Apache-2.0

//! Backlogs.

use crate::{
    Endpoint, Interrupt, Policy, Wait,
    exporter::{Config, Exporter, Frame, Purpose, SlowReaders},
    fence::{ExporterFence, FenceError, FenceState, Signals, Written},
    memory::select::Selected,
    reader::{self, Item, Reader},
};
use frameshare_core::exporter::parts::Urgency;
use frameshare_protocol::{EntryIndex, FenceKind, Sequence};
use std::time::Duration;

/// A release that stays pending.
#[derive(Debug)]
struct Endless;

impl ExporterFence for Endless {
    fn kind(&self) -> FenceKind {
        FenceKind::Timeline
    }

    fn signal_ready(&mut self, _: EntryIndex, _: Sequence, _: &mut Signals) -> Result<(), FenceError> {
        Ok(())
    }

    fn poll_released(&mut self, _: EntryIndex, _: Sequence) -> Result<FenceState, FenceError> {
        Ok(FenceState::Pending)
    }
}

/// A waiting thread may take the wake-up of a release, find its fence pending, and end its wait
/// before the fence does.
#[test]
fn pending_release_before_backlog_is_polled() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
    let config = Config::default().slow_readers(SlowReaders::QueueThenWait);
    let exporter = Exporter::bind(&endpoint, config.fence_timeout(Duration::MAX), drop).unwrap();
    let interrupt = Interrupt::new().unwrap();
    let config = reader::Config::default().policy(Policy::Lossless).max_held(1);
    let mut reader = Reader::connect(&endpoint, config, &interrupt).unwrap();
    for _ in 0..2 {
        let slot = exporter.acquire(1000, Purpose::Copy, Wait::No).unwrap();
        exporter.publish(Frame::new(&slot, 1000, Written::Cpu), Wait::Forever).unwrap();
    }
    let polls_at_once = |has_released: bool| {
        exporter.locked(|state| {
            assert!(state.has_backlogs() && state.readers()[0].leases.vacant().is_none());
            state.polling_mut().take_order();
            state.polling_mut().begin_turn(Urgency::None);
            state.reclaim();
            assert_eq!(state.polling_mut().fences_pending(), has_released);
            state.polling_mut().take_order().at_once
        })
    };
    exporter.locked(|state| {
        let choice = Selected { kind: FenceKind::Timeline, why: String::new() };
        let leases = &mut state.readers_mut()[0].leases;
        leases.set_fence(Box::new(Endless), choice);
        leases.fence_all();
    });
    assert!(!polls_at_once(false));
    let frame = reader.next(Some(Duration::from_secs(60)), &interrupt).unwrap();
    assert!(matches!(frame, Some(Item::Frame(_))), "{frame:?}");
    drop(frame);
    assert!(polls_at_once(true));
}
