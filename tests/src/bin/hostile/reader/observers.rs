// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by observers.

use super::{Fate, cut_off, join};
use crate::Result;
use frameshare::Policy;
use frameshare_protocol::{
    limits::{MAX_MESSAGE, MAX_PEER_NAME, MIN_INTERVAL_MS},
    message::{Observe, ToExporter, ToReader},
};
use frameshare_tests::raw::{Channel, PATIENCE, encoded, hello, memfd};
use std::{
    os::fd::AsFd,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// Time of the attacks that go on for a while.
const WHILE: Duration = Duration::from_millis(300);

fn request(interval_ms: u32) -> Vec<u8> {
    encoded(ToExporter::Observe(Observe { name: "raw".into(), interval_ms }).encode())
}

/// Connects as an honest observer does, and receives the first snapshot.
fn observe(path: &Path) -> Result<Channel> {
    let channel = Channel::connect(path)?;
    channel.send(&request(0), &[])?;
    let answer = channel.receive(PATIENCE)?.map(|(packet, _)| ToReader::decode(&packet));
    match answer {
        Some(Ok(ToReader::Snapshot { .. })) => Ok(channel),
        other => Err(format!("{other:?} in place of a snapshot").into()),
    }
}

/// Sends one packet as an observer, after which the exporter must close the connection.
fn closed(path: &Path, packet: &[u8]) -> Result<()> {
    let channel = observe(path)?;
    channel.send(packet, &[])?;
    if channel.hangs_up(PATIENCE) {
        return Ok(());
    }
    Err(format!("the exporter does not mind {packet:?}").into())
}

pub fn garbage(path: &Path) -> Result<Fate> {
    let name = "x".repeat(MAX_PEER_NAME + 1);
    let packets = [
        vec![0xaa; 999],
        vec![0; MAX_MESSAGE + 1],
        Vec::new(),
        request(0),
        encoded(ToExporter::Observe(Observe { name, interval_ms: 0 }).encode()),
        encoded(ToExporter::Hello(hello(Policy::Latest, 2)).encode()),
        encoded(ToExporter::Retired { generation: 1 }.encode()),
        encoded(ToExporter::RequestKeyUnit.encode()),
    ];
    packets.iter().try_for_each(|packet| closed(path, packet))?;
    Ok(Fate::Refused)
}

/// A reader speaks as an observer.
pub fn as_reader(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    reader.channel.send(&encoded(ToExporter::Disconnect { reader: 1 }.encode()), &[])?;
    cut_off(&reader)
}

pub fn descriptors(path: &Path) -> Result<Fate> {
    let memory = memfd(4096)?;
    let channel = observe(path)?;
    channel.send(&encoded(ToExporter::RequestSnapshot { request: 1 }.encode()), &[memory.as_fd(); 253])?;
    match channel.hangs_up(PATIENCE) {
        true => Ok(Fate::Refused),
        false => Err("the exporter does not mind descriptors".into()),
    }
}

/// Requests as fast as the socket takes them; the answers keep to the limits.
pub fn flood_requests(path: &Path) -> Result<Fate> {
    let channel = observe(path)?;
    let start = Instant::now();
    let (mut snapshots, mut others) = (0, 0);
    for number in 1.. {
        let message = match number % 2 {
            0 => ToExporter::RequestSnapshot { request: number },
            _ => ToExporter::Disconnect { reader: u64::MAX },
        };
        let _ = channel.try_send(&encoded(message.encode()), &[]);
        while let Ok(Some((packet, _))) = channel.receive(Duration::ZERO) {
            match ToReader::decode(&packet) {
                Ok(ToReader::Snapshot { .. }) => snapshots += 1,
                _ => others += 1,
            }
        }
        if start.elapsed() > WHILE {
            break;
        }
    }
    let intervals = start.elapsed().as_millis() / u128::from(MIN_INTERVAL_MS) + 1;
    match snapshots <= intervals && others <= 16 * intervals {
        true => Ok(Fate::Left),
        false => {
            Err(format!("{snapshots} snapshots and {others} other answers in {intervals} intervals").into())
        }
    }
}

/// Subscribes and receives nothing: one snapshot waits, not a queue of them.
pub fn never_reads(path: &Path) -> Result<Fate> {
    let channel = Channel::connect(path)?;
    channel.send(&request(1), &[])?;
    thread::sleep(WHILE * 2);
    // Of all packets: the next snapshot comes as soon as this one is received.
    let bytes = rustix::io::ioctl_fionread(&channel)?;
    let (first, _) = channel.receive(PATIENCE)?.ok_or("the exporter hung up")?;
    match bytes <= first.len() as u64 {
        true => Ok(Fate::Left),
        false => Err(format!("{bytes} bytes wait, of which the first snapshot has {}", first.len()).into()),
    }
}

/// Requests without end whose answers are never received.
pub fn never_reads_answers(path: &Path) -> Result<Fate> {
    let channel = Channel::connect(path)?;
    channel.send(&request(0), &[])?;
    let start = Instant::now();
    while start.elapsed() < WHILE {
        let _ = channel.try_send(&encoded(ToExporter::Disconnect { reader: u64::MAX }.encode()), &[]);
    }
    Ok(Fate::Left)
}

/// 300 open connections. Another reader can still join, and the newest observer is served.
pub fn many(path: &Path) -> Result<Fate> {
    let mut channels = Vec::new();
    for _ in 0..300 {
        channels.push(observe(path)?);
    }
    drop(join(path)?);
    drop(observe(path)?);
    let open = channels.iter().filter(|channel| !channel.awaits_end(Duration::ZERO)).count();
    match open <= 16 {
        true => Ok(Fate::Refused),
        false => Err(format!("{open} connections of one process are open").into()),
    }
}

/// Hundreds of connections that end right after their request.
pub fn brief(path: &Path) -> Result<Fate> {
    for _ in 0..300 {
        if let Ok(channel) = Channel::connect(path) {
            let _ = channel.send(&request(1), &[]);
        }
    }
    Ok(Fate::Left)
}
