// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by control messages between frames.

use super::{AFTERWARDS, SLOT, meet};
use crate::Result;
use frameshare::{Descriptor, Reason};
use frameshare_protocol::{
    limits::{MAX_MESSAGE, MAX_PAYLOAD},
    message::{Payload, ToReader},
};
use frameshare_tests::raw::{Door, Offer, RawExporter, Seals, memfd};
use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

fn say_raw(door: &Door, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<RawExporter> {
    let exporter = meet(door)?;
    exporter.channel.send(packet, fds)?;
    Ok(exporter)
}

fn say(door: &Door, message: &ToReader, fd: Option<BorrowedFd<'_>>) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    exporter.say(message, fd)?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

fn sealed_event(size: u64) -> ToReader {
    ToReader::Event { before: 2, kind: 4, payload: Payload::Sealed(size) }
}

pub fn garbage(door: &Door) -> Result<RawExporter> {
    say_raw(door, &[0xaa; 77], &[])
}

pub fn too_long(door: &Door) -> Result<RawExporter> {
    say_raw(door, &vec![0; MAX_MESSAGE + 1], &[])
}

pub fn welcome_again(door: &Door) -> Result<RawExporter> {
    let offer = Offer::new(4, 2, 1)?;
    let packet = frameshare_tests::raw::encoded(ToReader::Welcome(offer.welcome.clone()).encode());
    let fds: Vec<_> = offer.fds.iter().map(AsFd::as_fd).collect();
    say_raw(door, &packet, &fds)
}

pub fn with_a_file(door: &Door) -> Result<RawExporter> {
    say(door, &sealed_event(100), Some(File::open("/proc/self/exe")?.as_fd()))
}

pub fn payload_is_a_pipe(door: &Door) -> Result<RawExporter> {
    say(door, &sealed_event(100), Some(rustix::pipe::pipe()?.0.as_fd()))
}

pub fn payload_too_short(door: &Door) -> Result<RawExporter> {
    let file = memfd(4096)?;
    Seals::SizeAndWrites.put_on(&file)?;
    say(door, &sealed_event(MAX_PAYLOAD), Some(file.as_fd()))
}

pub fn payload_can_shrink(door: &Door) -> Result<RawExporter> {
    let file = memfd(4096)?;
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::FUTURE_WRITE)?;
    let exporter = say(door, &sealed_event(4096), Some(file.as_fd()))?;
    rustix::fs::ftruncate(&file, 0)?;
    Ok(exporter)
}

/// The reader would have to keep such messages without bound.
pub fn for_no_frame(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    let message = ToReader::Event { before: u64::MAX, kind: 4, payload: Payload::Inline(vec![1; 1000]) };
    while exporter.say(&message, None).is_ok() {
        exporter.ring();
    }
    Ok(exporter)
}

/// The same with payloads of a megabyte each.
pub fn payloads_for_no_frame(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    let file = memfd(1 << 20)?;
    Seals::SizeAndWrites.put_on(&file)?;
    let message = ToReader::Event { before: u64::MAX, kind: 4, payload: Payload::Sealed(1 << 20) };
    while exporter.say(&message, Some(file.as_fd())).is_ok() {
        exporter.ring();
    }
    Ok(exporter)
}

/// All messages are due: the reader receives one after the other, and can be stopped.
pub fn without_end(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    let end = Instant::now() + AFTERWARDS;
    while Instant::now() < end {
        let message = ToReader::Event { before: 1, kind: u32::MAX, payload: Payload::Inline(vec![0xff; 9]) };
        if exporter.say(&message, None).is_err() {
            break;
        }
        exporter.ring();
    }
    Ok(exporter)
}

pub fn do_not_come(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    exporter.messages = 1 << 60;
    exporter.publish_as(Descriptor { generation: 1, size: SLOT, ..Default::default() });
    Ok(exporter)
}

/// The message may still arrive: the reader waits, as for a silent exporter.
pub fn does_not_come(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    exporter.messages += 1;
    exporter.publish_as(Descriptor { generation: 1, size: SLOT, ..Default::default() });
    std::thread::sleep(AFTERWARDS);
    Ok(exporter)
}

pub fn goodbye(door: &Door) -> Result<RawExporter> {
    let text = "so long\n\x1b]0;owned\x07".repeat(3000);
    say(door, &ToReader::Goodbye { reason: Reason::TooSlow, text }, None)
}
