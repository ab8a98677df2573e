// SPDX-License-Identifier: MIT OR Apache-2.0

//! A reader that reports the loss of its context: it is evicted at once, and its slots stay until
//! its process has ended, for the fence timeout at most.

use frameshare::{
    Endpoint, Policy, Wait,
    exporter::{Config, Exporter, Frame, Notice},
    fence::Written,
};
use frameshare_protocol::{
    EntryIndex, Sequence,
    message::{Reason, ToExporter},
    page::{Claim, ClaimState, claim_at},
};
use frameshare_tests::{
    process::{PATIENCE, TestRun, wait_until},
    raw::{RawReader, encoded, hello},
};
use std::{
    path::Path,
    sync::{atomic::Ordering, mpsc::channel},
    time::Duration,
};

const SIZE: u64 = 4096;

/// A stream whose failed reader is evicted, and then hangs up. Its process, which is this one, goes
/// on.
struct Failed {
    exporter: Exporter,
    _run: TestRun,
}

impl Failed {
    fn new(fence_timeout: Duration) -> Self {
        let run = TestRun::new();
        let path = run.socket("s");
        let (sender, notices) = channel();
        let config = Config::default().fence_timeout(fence_timeout);
        let endpoint = Endpoint::at(&path).unwrap();
        let exporter = Exporter::bind(&endpoint, config, move |notice| drop(sender.send(notice))).unwrap();
        let failed = Self { exporter, _run: run };
        let reader = RawReader::join(Path::new(&path), hello(Policy::Lossless, 4)).unwrap();
        wait_until("the reader joins", || failed.exporter.stats().readers.len() == 1);
        failed.publish();
        let taken = Claim { sequence: Sequence(1), state: ClaimState::Taken };
        reader.claims[claim_at(EntryIndex(0))].store(taken.encode(), Ordering::SeqCst);
        let goodbye = ToExporter::Goodbye { reason: Reason::Failed, text: "its context is lost".into() };
        reader.channel.send(&encoded(goodbye.encode()), &[]).unwrap();
        let removed = || loop {
            let notice = notices.recv_timeout(PATIENCE).expect("a reader is removed");
            if let Notice::ReaderRemoved { reason, .. } = notice {
                break reason;
            }
        };
        assert_eq!(removed(), Reason::Failed);
        drop(reader);
        // The exporter handles this end after the other one.
        drop(RawReader::join(Path::new(&path), hello(Policy::Latest, 1)).unwrap());
        assert_eq!(removed(), Reason::Stopped);
        failed
    }

    fn publish(&self) {
        let slot = self.exporter.filled(SIZE, Wait::Forever, |_| ()).unwrap();
        self.exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever).unwrap();
    }

    fn used_slots(&self) -> u32 {
        let stats = self.exporter.stats();
        stats.slots - stats.free_slots
    }
}

#[test]
fn slots_of_failed_reader_stay_while_its_process_lives() {
    let failed = Failed::new(Duration::MAX);
    for _ in 0..100 {
        failed.publish();
        assert_eq!(failed.used_slots(), 1, "the slot of a failed reader is used again");
    }
}

/// Also the negative control: a slot that is used again is seen.
#[test]
fn slots_of_failed_reader_return_after_fence_timeout() {
    let failed = Failed::new(Duration::from_millis(10));
    wait_until("the slot returns", || failed.used_slots() == 0);
}
