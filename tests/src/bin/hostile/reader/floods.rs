// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by number: connections, messages and credit.

use super::{Fate, join, take};
use crate::Result;
use frameshare::Policy;
use frameshare_protocol::message::ToExporter;
use frameshare_tests::raw::{Channel, RawReader, encoded, hello};
use std::{
    path::Path,
    time::{Duration, Instant},
};

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
    Ok(Fate::Refused)
}

/// Requests for key units as fast as the socket takes them.
pub fn key_units(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    // A request of a reader that still reads kept units is ignored.
    take(&reader)?;
    let request = encoded(ToExporter::RequestKeyUnit.encode());
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        let _ = reader.channel.try_send(&request, &[]);
    }
    Ok(Fate::Left)
}
