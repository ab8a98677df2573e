//! More of everything than anybody needs.

use super::{Fate, join};
use crate::Result;
use frameshare::Policy;
use frameshare_protocol::message::ToExporter;
use frameshare_tests::raw::{Channel, RawReader, encoded, hello};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// Connections that never say anything, some 100 of them at any time. Another reader still gets in between.
pub fn silent(path: &Path) -> Result<Fate> {
    let mut silent = Vec::new();
    let end = Instant::now() + Duration::from_millis(500);
    while Instant::now() < end {
        // Where the exporter is slow to take them there is no room for a moment.
        silent.extend(Channel::connect(path));
        if silent.len() > 100 {
            silent.remove(0);
        }
    }
    drop(join(path)?);
    Ok(Fate::Refused)
}

/// One connection that never says anything, and the next one as soon as it is refused. Does not return.
pub fn stay_silent(path: &Path) -> Result<()> {
    let mut connected = false;
    loop {
        if let Ok(channel) = Channel::connect(path) {
            if !std::mem::replace(&mut connected, true) {
                println!("{}", serde_json::json!({ "event": "connected" }));
            }
            // A refusal, or the end.
            let _ = channel.receive(Duration::MAX);
        }
    }
}

/// Hello, and gone, hundreds of times.
pub fn hellos(path: &Path) -> Result<Fate> {
    let hello = encoded(ToExporter::Hello(hello(Policy::Latest, 1)).encode());
    for _ in 0..300 {
        if let Ok(channel) = Channel::connect(path) {
            let _ = channel.send(&hello, &[]);
        }
    }
    Ok(Fate::Left)
}

/// Takes all the credit that there is, and is refused more.
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
