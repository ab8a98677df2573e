// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by generations and slots.

use super::{CAPS, SLOT};
use crate::Result;
use frameshare::MemoryKind;
use frameshare_protocol::{limits::MAX_SLOT_SIZE, message::ToReader};
use frameshare_tests::raw::{Door, Offer, PATIENCE, RawExporter, Seals, memfd};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};
use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

fn meet(door: &Door) -> Result<RawExporter> {
    let mut exporter = Offer::new(4, 2, 1)?.send(door, PATIENCE)?;
    exporter.format(CAPS)?;
    Ok(exporter)
}

fn generation(number: u32) -> ToReader {
    ToReader::Generation { generation: number, memory: MemoryKind::Host, slot_size: SLOT, adopted: false }
}

fn slot(generation: u32, slot: u32) -> ToReader {
    ToReader::Slot { generation, slot, handle: Vec::new() }
}

/// Sends a file as a slot, and publishes a frame in it.
fn hand_over(door: &Door, size: u64, fd: Option<BorrowedFd<'_>>) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    exporter.say(
        &ToReader::Generation { generation: 1, memory: MemoryKind::Host, slot_size: size, adopted: false },
        None,
    )?;
    exporter.say(&slot(1, 0), fd)?;
    exporter.publish(1, size.min(1 << 20));
    Ok(exporter)
}

fn sealed() -> Result<OwnedFd> {
    let fd = memfd(SLOT)?;
    Seals::SizeAndWrites.put_on(&fd)?;
    Ok(fd)
}

pub fn pipe(door: &Door) -> Result<RawExporter> {
    hand_over(door, SLOT, Some(rustix::pipe::pipe()?.0.as_fd()))
}

pub fn folder(door: &Door) -> Result<RawExporter> {
    hand_over(door, SLOT, Some(File::open("/")?.as_fd()))
}

/// Shrinks the file while the reader reads. The file is sealed against writes, as the reader
/// requires.
pub fn shrinks(door: &Door) -> Result<RawExporter> {
    let fd = memfd(SLOT)?;
    fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE)?;
    let mut exporter = hand_over(door, SLOT, Some(fd.as_fd()))?;
    for _ in 0..100 {
        exporter.publish(1, SLOT);
        thread::sleep(Duration::from_millis(1));
    }
    ftruncate(&fd, 0)?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

pub fn is_punched(door: &Door) -> Result<RawExporter> {
    let fd = memfd(SLOT)?;
    Seals::Size.put_on(&fd)?;
    let exporter = hand_over(door, SLOT, Some(fd.as_fd()))?;
    fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, SLOT)?;
    Ok(exporter)
}

pub fn too_short(door: &Door) -> Result<RawExporter> {
    hand_over(door, SLOT + 1, Some(sealed()?.as_fd()))
}

/// A terabyte without pages, which are allocated when read.
pub fn with_holes(door: &Door) -> Result<RawExporter> {
    let fd = memfd(0)?;
    ftruncate(&fd, MAX_SLOT_SIZE)?;
    Seals::SizeAndWrites.put_on(&fd)?;
    hand_over(door, MAX_SLOT_SIZE, Some(fd.as_fd()))
}

/// A hole in the slot, and as many blocks behind the end of the file.
pub fn with_blocks_behind_a_hole(door: &Door) -> Result<RawExporter> {
    use rustix::fs::{FallocateFlags, fallocate};
    let fd = memfd(SLOT)?;
    fallocate(&fd, FallocateFlags::KEEP_SIZE, SLOT, SLOT)?;
    fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 4096)?;
    Seals::SizeAndWrites.put_on(&fd)?;
    hand_over(door, SLOT, Some(fd.as_fd()))
}

pub fn without_descriptor(door: &Door) -> Result<RawExporter> {
    hand_over(door, SLOT, None)
}

pub fn twice(door: &Door) -> Result<RawExporter> {
    let fd = sealed()?;
    let mut exporter = hand_over(door, SLOT, Some(fd.as_fd()))?;
    exporter.say(&slot(1, 0), Some(fd.as_fd()))?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

pub fn of_no_generation(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    exporter.say(&slot(7, 0), Some(sealed()?.as_fd()))?;
    exporter.ring();
    Ok(exporter)
}

pub fn generation_twice(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    exporter.say(&generation(1), None)?;
    exporter.say(&generation(1), None)?;
    exporter.ring();
    Ok(exporter)
}

pub fn of_a_gpu(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    let message =
        ToReader::Generation { generation: 1, memory: MemoryKind::Vmm, slot_size: SLOT, adopted: false };
    exporter.say(&message, None)?;
    exporter.ring();
    Ok(exporter)
}

/// Continues until the reader ends the stream or is full.
pub fn generations(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    for number in 0..100_000 {
        exporter.ring();
        if exporter.say(&generation(number), None).is_err() {
            break;
        }
    }
    Ok(exporter)
}

pub fn slots(door: &Door) -> Result<RawExporter> {
    let mut exporter = meet(door)?;
    let fd = sealed()?;
    'all: for number in 0..60 {
        let _ = exporter.say(&generation(number), None);
        for index in 0..1024 {
            exporter.ring();
            if exporter.say(&slot(number, index), Some(fd.as_fd())).is_err() {
                break 'all;
            }
        }
    }
    Ok(exporter)
}
