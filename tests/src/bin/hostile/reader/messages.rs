// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by control messages after admission.

use super::{Fate, cut_off, join, take, wait_for};
use crate::Result;
use frameshare::Policy;
use frameshare_protocol::{
    limits::MAX_MESSAGE,
    message::{Reason, ToExporter, ToReader},
};
use frameshare_tests::raw::{PATIENCE, encoded, hello, memfd};
use std::{fs::File, os::fd::AsFd, path::Path, thread, time::Duration};

/// Sends one packet, after which the exporter must disconnect the reader.
fn send_message(path: &Path, packet: &[u8]) -> Result<Fate> {
    let reader = join(path)?;
    take(&reader)?;
    reader.channel.send(packet, &[])?;
    cut_off(&reader)
}

fn goodbye(text: &str) -> Vec<u8> {
    encoded(ToExporter::Goodbye { reason: Reason::Stopped, text: text.into() }.encode())
}

pub fn hello_twice(path: &Path) -> Result<Fate> {
    send_message(path, &encoded(ToExporter::Hello(hello(Policy::Latest, 4)).encode()))
}

pub fn garbage(path: &Path) -> Result<Fate> {
    send_message(path, &[0xaa; 999])
}

pub fn too_long(path: &Path) -> Result<Fate> {
    send_message(path, &vec![0; MAX_MESSAGE + 1])
}

/// An empty packet reads as the end of the connection.
pub fn empty(path: &Path) -> Result<Fate> {
    send_message(path, &[])?;
    Ok(Fate::Left)
}

pub fn gives_up_unknown(path: &Path) -> Result<Fate> {
    send_message(path, &encoded(ToExporter::Retired { generation: 999_999 }.encode()))
}

/// The reader could otherwise make the exporter send every slot again, as often as it likes.
pub fn gives_up_unasked(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let generation = wait_for("a generation", || match reader.channel.receive(PATIENCE) {
        Ok(Some((packet, _))) => match ToReader::decode(&packet) {
            Ok(ToReader::Generation { generation, .. }) => Some(generation),
            _ => None,
        },
        _ => None,
    })?;
    take(&reader)?;
    reader.channel.send(&encoded(ToExporter::Retired { generation }.encode()), &[])?;
    cut_off(&reader)
}

pub fn gives_up_slot_unasked(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let slot = wait_for("a slot", || match reader.channel.receive(PATIENCE) {
        Ok(Some((packet, _))) => match ToReader::decode(&packet) {
            Ok(ToReader::Slot { slot, .. }) => Some(slot),
            _ => None,
        },
        _ => None,
    })?;
    take(&reader)?;
    reader.channel.send(&encoded(ToExporter::RetiredSlot { slot }.encode()), &[])?;
    cut_off(&reader)
}

/// The reader holds a frame, so that the exporter still receives from it.
pub fn goodbyes(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    take(&reader)?;
    while reader.channel.send(&goodbye("again"), &[]).is_ok() {}
    Ok(Fate::Left)
}

pub fn escape_codes(path: &Path) -> Result<Fate> {
    let mut hello = hello(Policy::Latest, 1);
    hello.name = "\x1b[31mred\nERROR all is lost".into();
    let reader = frameshare_tests::raw::RawReader::join(path, hello)?;
    reader.channel.send(&goodbye(&"\n\x1b[2J".repeat(10_000)), &[])?;
    cut_off(&reader)?;
    Ok(Fate::Left)
}

pub fn descriptors(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let folder = File::open("/")?;
    reader.channel.send(&goodbye("with a folder"), &[folder.as_fd()])?;
    cut_off(&reader)
}

pub fn many_descriptors(path: &Path) -> Result<Fate> {
    let reader = join(path)?;
    let memory = memfd(4096)?;
    reader.channel.send(&goodbye("with as many as there can be"), &[memory.as_fd(); 253])?;
    cut_off(&reader)
}

/// Reads neither messages nor frames, and closes the connection in the end.
pub fn never_listens(path: &Path) -> Result<Fate> {
    let _reader = join(path)?;
    thread::sleep(Duration::from_millis(300));
    Ok(Fate::Left)
}
