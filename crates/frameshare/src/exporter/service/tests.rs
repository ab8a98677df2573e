// SPDX-License-Identifier: MIT OR Apache-2.0

//! Background work that fails, and exporters of forked children.

use super::stall;
use crate::{
    Endpoint, Interrupt, Reason, Wait,
    exporter::{AcquireError, Config, Exporter, Frame, Notice, PublishError, Purpose},
    fence::Written,
    reader::{self, ConnectError, Item, ReadError, Reader},
};
use frameshare_process::testing::with_same_id;
use std::{sync::mpsc::channel, time::Duration};

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
