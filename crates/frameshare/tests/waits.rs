// SPDX-License-Identifier: MIT OR Apache-2.0

//! Threads of an exporter that wait for readers at the same time.

use frameshare::{
    Endpoint, Interrupt, Policy, Reason, Wait,
    exporter::{Config, Exporter, Frame, Notice, Purpose},
    fence::Written,
    reader::{self, Item, Reader},
};
use std::{
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

const TIMEOUT: Duration = Duration::from_secs(3);

/// An exporter, the notices of readers that were removed, and a lossless reader with this credit.
fn stream(credit: u32) -> (tempfile::TempDir, Exporter, mpsc::Receiver<Reason>, Reader) {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s.sock")).unwrap();
    let (sender, removed) = mpsc::channel();
    let observer = move |notice| {
        if let Notice::ReaderRemoved { reason, .. } = notice {
            let _ = sender.send(reason);
        }
    };
    let config = Config::default().reader_timeout(TIMEOUT);
    let exporter = Exporter::bind(&endpoint, config, observer).unwrap();
    let config = reader::Config::default().policy(Policy::Lossless).max_held(credit);
    let reader = Reader::connect(&endpoint, config, &Interrupt::new().unwrap()).unwrap();
    (folder, exporter, removed, reader)
}

fn publish(exporter: &Exporter) {
    let slot = exporter.acquire(1000, Purpose::Copy, Wait::No).unwrap();
    exporter.publish(Frame::new(&slot, 1000, Written::Cpu), Wait::Forever).unwrap();
}

fn next_frame(reader: &mut Reader, interrupt: &Interrupt) -> reader::Frame {
    loop {
        if let Some(Item::Frame(frame)) = reader.next(Some(Duration::from_secs(20)), interrupt).unwrap() {
            return frame;
        }
    }
}

#[test]
fn stuck_reader_is_evicted_while_other_threads_wait() {
    let (_folder, exporter, removed, mut reader) = stream(1);
    let interrupt = Interrupt::new().unwrap();
    publish(&exporter);
    let _held = next_frame(&mut reader, &interrupt);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                let _ = exporter.wait_for_reader(Wait::Forever);
                thread::sleep(TIMEOUT / 6);
            }
        });
        scope.spawn(|| publish(&exporter));
        let reason = removed.recv_timeout(Duration::from_secs(20));
        is_over.store(true, Ordering::Relaxed);
        exporter.interrupt().set();
        assert_eq!(reason, Ok(Reason::TooSlow));
    });
}

/// Each frame is held for less than `reader_timeout`, all of them for much longer.
#[test]
fn slow_reader_stays_while_another_thread_waits() {
    let (_folder, exporter, removed, mut reader) = stream(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..12).for_each(|_| publish(&exporter));
            exporter.interrupt().set();
        });
        let reading = Interrupt::new().unwrap();
        let first = next_frame(&mut reader, &reading);
        scope.spawn(|| exporter.drain(Wait::For(Duration::from_secs(600))));
        thread::sleep(TIMEOUT / 4);
        drop(first);
        for _ in 1..12 {
            let frame = next_frame(&mut reader, &reading);
            thread::sleep(TIMEOUT / 4);
            drop(frame);
        }
    });
    assert!(removed.try_recv().is_err());
}
