// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notice handlers that block, end the exporter, or panic: nothing waits for them.

use frameshare::{
    Endpoint, Interrupt, Wait,
    exporter::{Config, Exporter, Frame, Notice, Purpose},
    fence::Written,
    reader::{self, Reader},
};
use std::{
    sync::{Mutex, OnceLock, mpsc},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

fn endpoint() -> (tempfile::TempDir, Endpoint) {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s.sock")).unwrap();
    (folder, endpoint)
}

#[test]
fn blocked_handler_delays_neither_frames_nor_end() {
    let (_folder, endpoint) = endpoint();
    let (release, blocked) = mpsc::channel::<()>();
    let (entered, is_entered) = mpsc::channel();
    let blocked = Mutex::new(blocked);
    let handler = move |_: Notice| {
        let _ = entered.send(());
        let _ = blocked.lock().unwrap().recv();
    };
    let exporter = Exporter::bind(&endpoint, Config::default(), handler).unwrap();
    let interrupt = Interrupt::new().unwrap();
    let connect = || Reader::connect(&endpoint, reader::Config::default(), &interrupt).unwrap();
    let mut first = connect();
    is_entered.recv_timeout(PATIENCE).unwrap();
    let _second = connect();
    let slot = exporter.acquire(100, Purpose::Copy, Wait::No).unwrap();
    exporter.publish(Frame::new(&slot, 100, Written::Cpu), Wait::Forever).unwrap();
    assert!(matches!(first.next(Some(PATIENCE), &interrupt), Ok(Some(reader::Item::Frame(_)))));
    drop(slot);
    let (ended, is_ended) = mpsc::channel();
    thread::spawn(move || {
        drop(exporter);
        ended.send(())
    });
    is_ended.recv_timeout(PATIENCE).expect("the end waits for the handler");
    drop(release);
}

#[test]
fn handler_gets_past_notices_before_drop_returns() {
    let interrupt = Interrupt::new().unwrap();
    for _ in 0..20 {
        let (_folder, endpoint) = endpoint();
        let (sender, notices) = mpsc::channel();
        let exporter =
            Exporter::bind(&endpoint, Config::default(), move |notice| drop(sender.send(notice))).unwrap();
        let _reader = Reader::connect(&endpoint, reader::Config::default(), &interrupt).unwrap();
        let begin = Instant::now();
        drop(exporter);
        let kinds: Vec<_> = notices.try_iter().collect();
        // It does not wait for long, should the machine be busy.
        if begin.elapsed() < Duration::from_millis(150) {
            assert!(matches!(kinds[..], [Notice::ReaderAdded(_), Notice::ReaderRemoved { .. }]), "{kinds:?}");
            return;
        }
    }
    panic!("each end waited for its notices");
}

#[test]
fn handler_may_end_the_exporter() {
    let (_folder, endpoint) = endpoint();
    static EXPORTER: OnceLock<Mutex<Option<Exporter>>> = OnceLock::new();
    let (ended, is_ended) = mpsc::channel();
    let handler = move |notice| {
        if matches!(notice, Notice::ReaderAdded(_)) {
            drop(EXPORTER.wait().lock().unwrap().take());
            let _ = ended.send(());
        }
    };
    let exporter = Exporter::bind(&endpoint, Config::default(), handler).unwrap();
    let _ = EXPORTER.set(Mutex::new(Some(exporter)));
    let interrupt = Interrupt::new().unwrap();
    let _reader = Reader::connect(&endpoint, reader::Config::default(), &interrupt).unwrap();
    is_ended.recv_timeout(PATIENCE).unwrap();
}
