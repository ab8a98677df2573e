// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by number: connections, messages and credit.

use super::{Fate, join, take, wait_for};
use crate::Result;
use frameshare::Policy;
use frameshare_protocol::message::{Observe, ToExporter, ToReader};
use frameshare_tests::raw::{Channel, PATIENCE, RawReader, encoded, hello};
use serde_json::json;
use std::{
    collections::VecDeque,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Messages of a flood.
const MESSAGES: usize = 200_000;

/// About 100 silent connections at any time. Another reader can still join.
pub fn silent(path: &Path) -> Result<Fate> {
    let mut silent = Vec::new();
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        // The backlog may be full for a moment.
        silent.extend(Channel::connect(path));
        if silent.len() > 100 {
            silent.remove(0);
        }
    }
    drop(join(path)?);
    Ok(Fate::Refused)
}

/// Keeps one silent connection, and replaces it when it is refused. Does not return.
pub fn stay_silent(path: &Path) -> Result<()> {
    let mut connected = false;
    loop {
        if let Ok(channel) = Channel::connect(path) {
            if !std::mem::replace(&mut connected, true) {
                println!("{}", serde_json::json!({ "event": "connected" }));
            }
            // A refusal, or the end of the connection.
            let _ = channel.receive(Duration::MAX);
        }
    }
}

/// Hundreds of connections that end right after their hello.
pub fn hellos(path: &Path) -> Result<Fate> {
    let hello = encoded(ToExporter::Hello(hello(Policy::Latest, 1)).encode());
    for _ in 0..300 {
        if let Ok(channel) = Channel::connect(path) {
            let _ = channel.send(&hello, &[]);
        }
    }
    Ok(Fate::Left)
}

/// Reserves all available credit, and is refused more.
pub fn greedy(path: &Path) -> Result<Fate> {
    let mut readers = Vec::new();
    while let Ok(reader) = RawReader::join(path, hello(Policy::Latest, 16)) {
        readers.push(reader);
        if readers.len() > 64 {
            return Err("there is no end to it".into());
        }
    }
    if readers.is_empty() {
        return Err("there is no credit at all".into());
    }
    Ok(Fate::Refused)
}

/// Messages of each kind that a reader may send at any time, as fast as the exporter receives them:
/// requests for key units, and reports of copies.
pub fn messages(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    // A request of a reader that still reads kept units is ignored.
    take(&reader)?;
    let kinds = [ToExporter::RequestKeyUnit, ToExporter::CopiesForLayout].map(|kind| encoded(kind.encode()));
    for message in kinds.iter().cycle().take(MESSAGES) {
        reader.channel.send(message, &[])?;
    }
    Ok(Fate::Left)
}

/// Makes connections of each kind in turn, and prints how many of them became readers.
pub fn connect(path: &Path, count: usize) -> Result<()> {
    let hello = encoded(ToExporter::Hello(hello(Policy::Latest, 1)).encode());
    let observe = encoded(ToExporter::Observe(Observe { name: "raw".into(), interval_ms: 0 }).encode());
    let (mut silent, mut admitted) = (VecDeque::new(), 0);
    for number in 0..count {
        let channel = wait_for("a connection", || Channel::connect(path).ok())?;
        let send = |packet: &[u8]| drop(channel.try_send(packet, &[]));
        match number % 6 {
            0 => send(&hello),
            1 => {
                send(&hello);
                let answer = channel.receive(PATIENCE)?.map(|(packet, _)| ToReader::decode(&packet));
                admitted += usize::from(matches!(answer, Some(Ok(ToReader::Welcome(_)))));
            }
            2 => {
                send(&observe);
                channel.receive(PATIENCE)?;
            }
            3 => send(&[0xaa; 99]),
            // Some of the silent ones stay for a while.
            4 => {
                silent.push_back(channel);
                if silent.len() > 32 {
                    silent.pop_front();
                }
            }
            _ => {}
        }
    }
    println!("{}", json!({ "event": "done", "readers": admitted }));
    Ok(())
}

/// Takes as many connections as the exporter's limits allow at once, and keeps them until the
/// process is killed: readers until one is refused, observers and silent ones.
pub fn fill(path: &Path) -> Result<()> {
    let mut readers = Vec::new();
    while let Ok(reader) = RawReader::join(path, hello(Policy::Latest, 1)) {
        readers.push(reader);
    }
    let mut others = Vec::new();
    let observe = encoded(ToExporter::Observe(Observe { name: "raw".into(), interval_ms: 0 }).encode());
    for number in 0..100 {
        let channel = wait_for("a connection", || Channel::connect(path).ok())?;
        if number % 2 == 0 {
            let _ = channel.try_send(&observe, &[]);
        }
        others.push(channel);
    }
    println!("{}", json!({ "event": "full", "readers": readers.len() }));
    loop {
        thread::park();
    }
}
