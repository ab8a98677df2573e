// SPDX-License-Identifier: MIT OR Apache-2.0

//! Background work that fails, and exporters of forked children.

use super::stall;
use crate::{
    Endpoint, Interrupt, Policy, Reason, Wait,
    exporter::{AcquireError, Config, Exporter, Frame, Notice, PublishError, Purpose},
    fence::Written,
    reader::{self, ConnectError, Item, ReadError, Reader},
};
use frameshare_process::testing::{in_child, with_same_id};
use rustix::process::{Signal, getpid, kill_process};
use std::{process::Command, sync::mpsc::channel, thread, time::Duration};

const SIZE: u64 = 1000;
const PATIENCE: Duration = Duration::from_secs(60);

fn connect(endpoint: &Endpoint) -> Result<Reader, ConnectError> {
    Reader::connect(endpoint, reader::Config::default(), &Interrupt::new().unwrap())
}

fn next(reader: &mut Reader) -> Result<Item, ReadError> {
    Ok(reader.next(Some(PATIENCE), &Interrupt::new().unwrap())?.expect("nothing came in time"))
}

#[test]
fn panic_of_a_turn_closes_the_stream_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
    let (sender, notices) = channel();
    let exporter =
        Exporter::bind(&endpoint, Config::default(), move |notice| drop(sender.send(notice))).unwrap();
    let mut first = connect(&endpoint).unwrap();
    let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
    let publish = || exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever);
    publish().unwrap();
    stall::set(exporter.0.shared.id, || panic!("on purpose"));
    assert!(connect(&endpoint).is_err());
    let why = loop {
        match notices.recv_timeout(PATIENCE).unwrap() {
            Notice::Failed { why } => break why,
            notice => assert!(matches!(notice, Notice::ReaderAdded(_)), "{notice:?}"),
        }
    };
    assert!(why.contains("panicked"), "{why}");
    assert_eq!(publish(), Err(PublishError::Failed(why.clone())));
    let acquired = exporter.acquire(SIZE, Purpose::Copy, Wait::No);
    assert!(matches!(acquired, Err(AcquireError::Failed(text)) if text == why));
    assert!(matches!(next(&mut first), Ok(Item::Frame(_))), "a published frame is delivered");
    let error = next(&mut first).unwrap_err();
    assert!(matches!(error, ReadError::CutOff { reason: Reason::Failed, .. }), "{error:?}");
    // The name is free, for another exporter of this process, too.
    drop(Exporter::bind(&endpoint, Config::default(), drop).unwrap());
}

/// A process with an exporter and its readers is stopped for longer than a reader may hold the
/// stream back. The release of one reader ends the wait before the other has come to its own.
#[test]
fn readers_that_were_stopped_with_exporter_are_not_evicted() {
    let limit = Duration::from_secs(3);
    let stopped = || {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = Endpoint::at(folder.path().join("s")).unwrap();
        let (sender, notices) = channel();
        let config = Config::default().reader_timeout(limit);
        let exporter = Exporter::bind(&endpoint, config, move |notice| drop(sender.send(notice))).unwrap();
        let [mut first, mut second] = [(); 2].map(|()| {
            let config = reader::Config::default().policy(Policy::Lossless).max_held(1);
            Reader::connect(&endpoint, config, &Interrupt::new().unwrap()).unwrap()
        });
        let publish = || {
            let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
            exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever).unwrap();
        };
        publish();
        let held = [&mut first, &mut second].map(|reader| next(reader).unwrap());
        thread::scope(|scope| {
            let publishes = scope.spawn(publish);
            while !matches!(notices.recv_timeout(PATIENCE).unwrap(), Notice::ReaderBlocking { .. }) {}
            // It goes on more than a second after the time of the eviction.
            let mut waking = Command::new("sh").args(["-c", "sleep 5; kill -CONT $PPID"]).spawn().unwrap();
            kill_process(getpid(), Signal::STOP).unwrap();
            waking.wait().unwrap();
            let [of_first, of_second] = held;
            drop(of_second);
            // Long enough for the exporter to see the time, and less than the reader has left.
            thread::sleep(Duration::from_millis(200));
            drop(of_first);
            publishes.join().unwrap();
        });
        exporter.reader_count() == 2
    };
    assert_eq!(in_child(stopped), Some(true));
}

#[test]
fn forked_child_of_same_id_has_streams_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let endpoints = ["parent", "child"].map(|name| Endpoint::at(folder.path().join(name)).unwrap());
    let mut of_parent = None;
    let bind = |endpoint| {
        let exporter = Exporter::bind(endpoint, Config::default(), drop).unwrap();
        let mut reader = connect(endpoint).unwrap();
        let slot = exporter.acquire(SIZE, Purpose::Copy, Wait::No).unwrap();
        exporter.publish(Frame::new(&slot, SIZE, Written::Cpu), Wait::Forever).unwrap();
        assert!(matches!(next(&mut reader), Ok(Item::Frame(_))));
        exporter
    };
    with_same_id(
        "forked_child_of_same_id_has_streams_of_its_own",
        // It outlives the parent's call, in the child as well.
        || of_parent = Some(bind(&endpoints[0])),
        || {
            drop(bind(&endpoints[1]));
            true
        },
    );
    drop(of_parent);
}
