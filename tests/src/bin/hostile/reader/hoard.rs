// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers that collect the exporter's memory: they hold as many frames as they may, leave, and
//! come again. All descriptors that they get go to another process, which keeps them.

use super::consumer;
use crate::Result;
use frameshare::{Policy, Sequence};
use frameshare_protocol::message::{Reason, ToReader};
use frameshare_tests::raw::{Channel, Listener, PATIENCE, RawReader, hello};
use rustix::fs::fstat;
use serde_json::json;
use std::{
    collections::BTreeMap,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Number of readers at once, and of the frames that each of them holds.
const READERS: usize = 8;
const HELD: u32 = 16;
/// Maximum time of one round.
const ROUND: Duration = Duration::from_secs(2);

/// Keeps the descriptors that other processes send to `path`, one process after the other, and
/// prints what it keeps after each: the number of memory files and their bytes.
pub fn keep(path: &Path) -> Result<()> {
    let listener = Listener::bind(path)?;
    let mut kept: BTreeMap<u64, OwnedFd> = BTreeMap::new();
    println!("{}", json!({ "event": "keeps" }));
    loop {
        let Ok(sender) = listener.accept(Duration::from_secs(3600)) else { return Ok(()) };
        while let Some((_, fds)) = sender.receive(Duration::from_secs(3600))? {
            for fd in fds {
                kept.insert(fstat(&fd)?.st_ino, fd);
            }
        }
        let sizes = kept.values().map(|fd| Ok(512 * fstat(fd)?.st_blocks));
        let bytes = sizes.sum::<std::result::Result<i64, rustix::io::Errno>>()?;
        println!("{}", json!({ "event": "kept", "files": kept.len(), "bytes": bytes }));
    }
}

/// Sends descriptors to the process that keeps them.
fn pass_on(keeper: &Channel, fds: &[OwnedFd]) -> Result<()> {
    for fd in fds {
        keeper.send(b"keep", &[fd.as_fd()])?;
    }
    Ok(())
}

/// Receives what has arrived. Returns the reason if the exporter ends the connection for its
/// limits.
fn receive(reader: &RawReader, keeper: &Channel) -> Result<Option<String>> {
    while let Ok(Some((packet, fds))) = reader.channel.receive(Duration::ZERO) {
        pass_on(keeper, &fds)?;
        if let Ok(ToReader::Goodbye { reason: Reason::LimitExceeded, text }) = ToReader::decode(&packet) {
            return Ok(Some(text));
        }
    }
    Ok(None)
}

/// One round of one set of readers. Returns the reason for which the exporter ended or refused one
/// for its limits.
fn round(path: &Path, keeper: &Channel) -> Result<Option<String>> {
    let mut readers = Vec::new();
    for _ in 0..READERS {
        match RawReader::join(path, hello(Policy::Latest, HELD)) {
            Ok(reader) => readers.push((reader, Vec::new())),
            Err(error) => return Ok(Some(error.to_string())),
        }
    }
    for (reader, _) in &readers {
        pass_on(keeper, &reader.fds)?;
    }
    let (end, mut reason) = (Instant::now() + ROUND, None);
    let mut newest = Sequence(0);
    while Instant::now() < end && reason.is_none() {
        for (reader, _) in &readers {
            reason = receive(reader, keeper)?.or(reason);
        }
        // One reader after the other, so that they hold different frames.
        let Some((reader, held)) = readers.iter_mut().find(|(_, held)| held.len() < HELD as usize) else {
            break;
        };
        let consumer = consumer(reader);
        if let Some(Ok(found)) = consumer.oldest()
            && consumer.claim(found.entry, found.descriptor.sequence)
        {
            let frame = (found.entry, found.descriptor.sequence);
            if frame.1 > newest {
                newest = frame.1;
                held.push(frame);
            } else {
                consumer.release(frame.0, frame.1);
            }
        } else {
            thread::sleep(Duration::from_millis(1));
        }
    }
    for (index, (reader, held)) in readers.iter().enumerate() {
        held.iter().for_each(|(entry, sequence)| _ = consumer(reader).release(*entry, *sequence));
        reason = receive(reader, keeper)?.or(reason);
        // One in four is evicted: the exporter ends its connection, of which the other process
        // keeps the other end.
        if index % 4 == 0 {
            keeper.send(b"keep", &[reader.channel.as_fd()])?;
            let _ = reader.channel.send(b"garbage", &[]);
            reader.channel.awaits_end(PATIENCE);
        }
    }
    Ok(reason)
}

/// Collects memory for some time, or until the exporter ends its readers for their limits.
pub fn hoard(path: &Path, keeper: &Path, time: Duration) -> Result<()> {
    let keeper = Channel::connect(keeper)?;
    let end = Instant::now() + time;
    let (mut rounds, mut refusal) = (0, None);
    while Instant::now() < end && refusal.is_none() {
        refusal = round(path, &keeper)?;
        rounds += 1;
    }
    println!("{}", json!({ "event": "done", "rounds": rounds, "refusal": refusal }));
    Ok(())
}
