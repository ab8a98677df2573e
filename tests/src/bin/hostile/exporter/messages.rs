// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by control messages between frames.

use super::{AFTERWARDS, SLOT, accept};
use crate::Result;
use frameshare::{Descriptor, Reason, Sequence, SlotId};
use frameshare_protocol::{
    limits::{MAX_MESSAGE, MAX_PAYLOAD},
    message::{Payload, ToReader},
};
use frameshare_tests::raw::{Listener, Offer, RawExporter, Seals, memfd};
use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd},
    time::Instant,
};

fn send_raw(listener: &Listener, packet: &[u8], fds: &[BorrowedFd<'_>]) -> Result<RawExporter> {
    let exporter = accept(listener)?;
    exporter.channel.send(packet, fds)?;
    Ok(exporter)
}

fn send_message(listener: &Listener, message: &ToReader, fd: Option<BorrowedFd<'_>>) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.send_message(message, fd)?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

fn sealed_event(size: u64) -> ToReader {
    ToReader::Event { before: Sequence(2), kind: 4, sticky: false, payload: Payload::Sealed(size) }
}

pub fn garbage(listener: &Listener) -> Result<RawExporter> {
    send_raw(listener, &[0xaa; 77], &[])
}

pub fn too_long(listener: &Listener) -> Result<RawExporter> {
    send_raw(listener, &vec![0; MAX_MESSAGE + 1], &[])
}

pub fn welcome_again(listener: &Listener) -> Result<RawExporter> {
    let offer = Offer::new(4, 2, 1)?;
    let packet = frameshare_tests::raw::encoded(ToReader::Welcome(offer.welcome.clone()).encode());
    let fds: Vec<_> = offer.fds.iter().map(AsFd::as_fd).collect();
    send_raw(listener, &packet, &fds)
}

pub fn with_a_file(listener: &Listener) -> Result<RawExporter> {
    send_message(listener, &sealed_event(100), Some(File::open("/proc/self/exe")?.as_fd()))
}

pub fn payload_is_a_pipe(listener: &Listener) -> Result<RawExporter> {
    send_message(listener, &sealed_event(100), Some(rustix::pipe::pipe()?.0.as_fd()))
}

pub fn payload_too_short(listener: &Listener) -> Result<RawExporter> {
    let file = memfd(4096)?;
    Seals::SizeAndWrites.put_on(&file)?;
    send_message(listener, &sealed_event(MAX_PAYLOAD), Some(file.as_fd()))
}

pub fn payload_can_shrink(listener: &Listener) -> Result<RawExporter> {
    let file = memfd(4096)?;
    rustix::fs::fcntl_add_seals(&file, rustix::fs::SealFlags::FUTURE_WRITE)?;
    let exporter = send_message(listener, &sealed_event(4096), Some(file.as_fd()))?;
    rustix::fs::ftruncate(&file, 0)?;
    Ok(exporter)
}

/// The reader would have to keep such messages without bound.
pub fn for_no_frame(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let message = ToReader::Event {
        before: Sequence(u64::MAX),
        kind: 4,
        sticky: false,
        payload: Payload::Inline(vec![1; 1000]),
    };
    while exporter.send_message(&message, None).is_ok() {
        exporter.wake_reader();
    }
    Ok(exporter)
}

/// The same with payloads of a megabyte each.
pub fn payloads_for_no_frame(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let file = memfd(1 << 20)?;
    Seals::SizeAndWrites.put_on(&file)?;
    let message = ToReader::Event {
        before: Sequence(u64::MAX),
        kind: 4,
        sticky: false,
        payload: Payload::Sealed(1 << 20),
    };
    while exporter.send_message(&message, Some(file.as_fd())).is_ok() {
        exporter.wake_reader();
    }
    Ok(exporter)
}

/// All messages are due: the reader receives one after the other, and can be stopped.
pub fn without_end(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let end = Instant::now() + AFTERWARDS;
    while Instant::now() < end {
        let message = ToReader::Event {
            before: Sequence(1),
            kind: u32::MAX,
            sticky: false,
            payload: Payload::Inline(vec![0xff; 9]),
        };
        if exporter.send_message(&message, None).is_err() {
            break;
        }
        exporter.wake_reader();
    }
    Ok(exporter)
}

pub fn do_not_come(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.messages = 1 << 60;
    exporter.publish_as(Descriptor {
        slot: SlotId { generation: 1, index: 0 },
        size: SLOT,
        ..Default::default()
    });
    Ok(exporter)
}

/// The message may still arrive: the reader waits, as for a silent exporter.
pub fn does_not_come(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.messages += 1;
    exporter.publish_as(Descriptor {
        slot: SlotId { generation: 1, index: 0 },
        size: SLOT,
        ..Default::default()
    });
    std::thread::sleep(AFTERWARDS);
    Ok(exporter)
}

pub fn goodbye(listener: &Listener) -> Result<RawExporter> {
    let text = "so long\n\x1b]0;owned\x07".repeat(3000);
    send_message(listener, &ToReader::Goodbye { reason: Reason::TooSlow, text }, None)
}
