// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks before admission: invalid first packets.

use super::Fate;
use crate::Result;
use frameshare::Policy;
use frameshare_protocol::{
    limits::{MAX_CREDIT, MAX_GPUS, MAX_MESSAGE, MAX_PEER_NAME},
    message::{Hello, Reason, ToExporter},
};
use frameshare_tests::raw::{Channel, PATIENCE, encoded, hello, memfd};
use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    path::Path,
};

fn honest() -> Vec<u8> {
    encoded(ToExporter::Hello(hello(Policy::Latest, 2)).encode())
}

/// Sends a first packet that must end the connection.
fn refused(path: &Path, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let channel = Channel::connect(path)?;
    channel.send(packet, fds)?;
    if channel.hangs_up(PATIENCE) {
        return Ok(());
    }
    Err(format!("the exporter does not mind {} bytes, {packet:?}", packet.len()).into())
}

pub fn cut_short(path: &Path) -> Result<Fate> {
    let honest = honest();
    for length in 1..honest.len() {
        refused(path, &honest[..length], &[])?;
    }
    Ok(Fate::Refused)
}

/// Some of the changed packets are valid, and admitted.
pub fn flipped(path: &Path) -> Result<Fate> {
    let honest = honest();
    for at in 0..honest.len() {
        for mask in [0x01, 0x80, 0xff] {
            let mut packet = honest.clone();
            packet[at] ^= mask;
            let channel = Channel::connect(path)?;
            channel.send(&packet, &[])?;
            if channel.receive(PATIENCE).is_err_and(|error| error.kind() == std::io::ErrorKind::TimedOut) {
                return Err(format!("no answer to byte {at} with {mask:x}").into());
            }
        }
    }
    Ok(Fate::Refused)
}

pub fn absurd(path: &Path) -> Result<Fate> {
    let good = hello(Policy::Latest, 2);
    let bad = [
        Hello { credit: MAX_CREDIT + 1, ..good.clone() },
        Hello { credit: u32::MAX, ..good.clone() },
        Hello { max_queued: MAX_CREDIT + 1, ..good.clone() },
        Hello { max_queued: u32::MAX, ..good.clone() },
        Hello { name: "x".repeat(MAX_PEER_NAME + 1), ..good.clone() },
        Hello { gpus: vec![[0; 16]; MAX_GPUS + 1], ..good.clone() },
        Hello { memory: vec![good.memory[0]; 9], ..good.clone() },
        Hello { memory: Vec::new(), ..good.clone() },
        Hello { fences: vec![good.fences[0]; 9], ..good },
    ];
    for hello in bad {
        refused(path, &encoded(ToExporter::Hello(hello).encode()), &[])?;
    }
    Ok(Fate::Refused)
}

pub fn another_kind(path: &Path) -> Result<Fate> {
    let mut later = honest();
    later[4] = 0xee;
    let packets = [
        Vec::new(),
        vec![0; 1],
        vec![0xff; MAX_MESSAGE],
        vec![0; MAX_MESSAGE + 1],
        vec![0; 200_000],
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        later,
        [honest(), vec![0]].concat(),
        encoded(ToExporter::Retired { generation: 1 }.encode()),
        encoded(ToExporter::Goodbye { reason: Reason::Stopped, text: String::new() }.encode()),
    ];
    for packet in packets {
        refused(path, &packet, &[])?;
    }
    Ok(Fate::Refused)
}

pub fn with_descriptors(path: &Path) -> Result<Fate> {
    let (memory, folder) = (memfd(4096)?, File::open("/")?);
    refused(path, &honest(), &[memory.as_fd()])?;
    refused(path, &honest(), &[folder.as_fd()])?;
    refused(path, &honest(), &[memory.as_fd(); 253])?;
    Ok(Fate::Refused)
}
