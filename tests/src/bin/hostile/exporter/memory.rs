// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by generations and slots.

use super::{CAPS, SLOT, wait_until_taken};
use crate::Result;
use frameshare::{MemoryKind, SlotId};
use frameshare_protocol::{limits::MAX_SLOT_SIZE, message::ToReader};
use frameshare_tests::raw::{Listener, Offer, PATIENCE, RawExporter, Seals, memfd};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate};
use std::{
    fs::File,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    thread,
    time::Duration,
};

fn accept(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = Offer::new(4, 2, 1)?.send(listener, PATIENCE)?;
    exporter.format(CAPS)?;
    Ok(exporter)
}

fn generation(number: u32) -> ToReader {
    ToReader::Generation { generation: number, memory: MemoryKind::Host, slot_size: SLOT, adopted: false }
}

fn slot(generation: u32, slot: u32) -> ToReader {
    ToReader::Slot { slot: SlotId { generation, index: slot }, handle: Vec::new() }
}

/// Sends a file as a slot, and publishes a frame in it.
fn hand_over(listener: &Listener, size: u64, fd: Option<BorrowedFd<'_>>) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.send_message(
        &ToReader::Generation { generation: 1, memory: MemoryKind::Host, slot_size: size, adopted: false },
        None,
    )?;
    exporter.send_message(&slot(1, 0), fd)?;
    exporter.publish(1, size.min(1 << 20));
    Ok(exporter)
}

fn sealed() -> Result<OwnedFd> {
    let fd = memfd(SLOT)?;
    Seals::SizeAndWrites.put_on(&fd)?;
    Ok(fd)
}

pub fn pipe(listener: &Listener) -> Result<RawExporter> {
    hand_over(listener, SLOT, Some(rustix::pipe::pipe()?.0.as_fd()))
}

pub fn folder(listener: &Listener) -> Result<RawExporter> {
    hand_over(listener, SLOT, Some(File::open("/")?.as_fd()))
}

/// Shrinks the file while the reader reads. The file is sealed against writes, as the reader
/// requires.
pub fn shrinks(listener: &Listener) -> Result<RawExporter> {
    let fd = memfd(SLOT)?;
    fcntl_add_seals(&fd, SealFlags::FUTURE_WRITE)?;
    let mut exporter = hand_over(listener, SLOT, Some(fd.as_fd()))?;
    for _ in 0..100 {
        exporter.publish(1, SLOT);
        thread::sleep(Duration::from_millis(1));
    }
    ftruncate(&fd, 0)?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

pub fn is_punched(listener: &Listener) -> Result<RawExporter> {
    let fd = memfd(SLOT)?;
    Seals::Size.put_on(&fd)?;
    let exporter = hand_over(listener, SLOT, Some(fd.as_fd()))?;
    fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, SLOT)?;
    Ok(exporter)
}

pub fn too_short(listener: &Listener) -> Result<RawExporter> {
    hand_over(listener, SLOT + 1, Some(sealed()?.as_fd()))
}

/// A terabyte without pages, which are allocated when read.
pub fn with_holes(listener: &Listener) -> Result<RawExporter> {
    let fd = memfd(0)?;
    ftruncate(&fd, MAX_SLOT_SIZE)?;
    Seals::SizeAndWrites.put_on(&fd)?;
    hand_over(listener, MAX_SLOT_SIZE, Some(fd.as_fd()))
}

/// A hole in the slot, and as many blocks behind the end of the file.
pub fn with_blocks_behind_a_hole(listener: &Listener) -> Result<RawExporter> {
    use rustix::fs::{FallocateFlags, fallocate};
    let fd = memfd(SLOT)?;
    fallocate(&fd, FallocateFlags::KEEP_SIZE, SLOT, SLOT)?;
    fallocate(&fd, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4096, 4096)?;
    Seals::SizeAndWrites.put_on(&fd)?;
    hand_over(listener, SLOT, Some(fd.as_fd()))
}

pub fn without_descriptor(listener: &Listener) -> Result<RawExporter> {
    hand_over(listener, SLOT, None)
}

fn retire_slot(exporter: &mut RawExporter, generation: u32) -> Result<()> {
    let retire = ToReader::RetireSlot { slot: SlotId { generation, index: 0 } };
    Ok(exporter.send_message(&retire, None)?)
}

pub fn retired_twice(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = hand_over(listener, SLOT, Some(sealed()?.as_fd()))?;
    wait_until_taken(&exporter);
    (0..2).try_for_each(|_| retire_slot(&mut exporter, 1))?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

pub fn unknown_retired(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = hand_over(listener, SLOT, Some(sealed()?.as_fd()))?;
    retire_slot(&mut exporter, 9)?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

/// The import is gone, and its pages with it. The reader may take a frame before it receives the
/// message, which has no place among the frames.
pub fn retired_and_used(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = hand_over(listener, SLOT, Some(sealed()?.as_fd()))?;
    wait_until_taken(&exporter);
    retire_slot(&mut exporter, 1)?;
    for _ in 0..50 {
        exporter.publish(1, SLOT);
        wait_until_taken(&exporter);
        thread::sleep(Duration::from_millis(2));
    }
    Ok(exporter)
}

pub fn twice(listener: &Listener) -> Result<RawExporter> {
    let fd = sealed()?;
    let mut exporter = hand_over(listener, SLOT, Some(fd.as_fd()))?;
    exporter.send_message(&slot(1, 0), Some(fd.as_fd()))?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

pub fn of_no_generation(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.send_message(&slot(7, 0), Some(sealed()?.as_fd()))?;
    exporter.wake_reader();
    Ok(exporter)
}

pub fn generation_twice(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.send_message(&generation(1), None)?;
    exporter.send_message(&generation(1), None)?;
    exporter.wake_reader();
    Ok(exporter)
}

pub fn of_a_gpu(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let message =
        ToReader::Generation { generation: 1, memory: MemoryKind::Vmm, slot_size: SLOT, adopted: false };
    exporter.send_message(&message, None)?;
    exporter.wake_reader();
    Ok(exporter)
}

/// Sends a memory file as a dma-buf, and publishes a frame in it.
pub fn file_as_dma_buf(listener: &Listener) -> Result<RawExporter> {
    as_dma_buf(listener, true, sealed()?.as_fd())
}

/// Says that dma-bufs are of its own making, which none are.
pub fn own_dma_bufs(listener: &Listener) -> Result<RawExporter> {
    as_dma_buf(listener, false, sealed()?.as_fd())
}

/// Sends a descriptor as a dma-buf, and publishes a frame in it.
pub fn as_dma_buf(listener: &Listener, adopted: bool, fd: BorrowedFd<'_>) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let memory = MemoryKind::DmaBuf;
    exporter.send_message(&ToReader::Generation { generation: 1, memory, slot_size: SLOT, adopted }, None)?;
    exporter.send_message(&slot(1, 0), Some(fd))?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

/// Continues until the reader ends the stream or is full.
pub fn generations(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    for number in 0..100_000 {
        exporter.wake_reader();
        if exporter.send_message(&generation(number), None).is_err() {
            break;
        }
    }
    Ok(exporter)
}

pub fn slots(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let fd = sealed()?;
    'all: for number in 0..60 {
        let _ = exporter.send_message(&generation(number), None);
        for index in 0..1024 {
            exporter.wake_reader();
            if exporter.send_message(&slot(number, index), Some(fd.as_fd())).is_err() {
                break 'all;
            }
        }
    }
    Ok(exporter)
}
