// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by kept units and their memory files.

use super::{AFTERWARDS, SLOT, accept};
use crate::Result;
use frameshare::{Descriptor, Sequence};
use frameshare_protocol::{
    kept::{KeptUnit, RECORD},
    message::ToReader,
};
use frameshare_tests::{
    random::Random,
    raw::{Listener, Page, RawExporter, Seals, memfd},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    sync::atomic::Ordering::Relaxed,
    time::Instant,
};

/// Bytes of one unit.
const UNIT: u64 = 1000;
/// Word of the record that holds the size, and the length of the metadata.
const SIZE: usize = 5;
const METADATA: usize = RECORD - 1;

/// A file of units with these sequence numbers, its size in bytes, and its mapping.
fn file_of(sequences: &[u64]) -> Result<(OwnedFd, u64, Page)> {
    file_of_sized(sequences, UNIT)
}

fn file_of_sized(sequences: &[u64], size: u64) -> Result<(OwnedFd, u64, Page)> {
    let mut at = 0;
    let mut units = Vec::new();
    for sequence in sequences {
        let descriptor = Descriptor { sequence: Sequence(*sequence), size, ..Default::default() };
        let unit = KeptUnit::new(descriptor, 9, at).ok_or("a unit that is too large")?;
        let next = unit.next;
        units.push((at, unit));
        at = next;
    }
    let fd = memfd((8 * at as u64).next_multiple_of(4096))?;
    let page = Page::writable(&fd, 8 * at)?;
    for (at, unit) in &units {
        page[*at..].iter().zip(unit.encode()).for_each(|(word, value)| word.store(value, Relaxed));
    }
    Ok((fd, 8 * at as u64, page))
}

/// Sends a file as `count` units of `size` bytes, and a frame.
fn send(listener: &Listener, fd: &OwnedFd, count: u32, size: u64) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let message = ToReader::KeptUnits { before: Sequence(100), count, size };
    exporter.next = Sequence(100);
    exporter.send_message(&message, Some(fd.as_fd()))?;
    exporter.publish(1, SLOT);
    Ok(exporter)
}

/// Sends units after a change of their file, which is sealed.
fn with_file(
    listener: &Listener,
    sequences: &[u64],
    change: impl FnOnce(&Page),
    announce: impl FnOnce(u32, u64) -> (u32, u64),
) -> Result<RawExporter> {
    let (fd, size, page) = file_of(sequences)?;
    change(&page);
    Seals::SizeAndWrites.put_on(&fd)?;
    let (count, size) = announce(sequences.len() as u32, size);
    send(listener, &fd, count, size)
}

/// Nothing is wrong with these: the attacks below fail for their own reasons.
pub fn honest(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50, 51], |_| (), |count, size| (count, size))
}

pub fn file_is_a_pipe(listener: &Listener) -> Result<RawExporter> {
    send(listener, &rustix::pipe::pipe()?.0, 1, 4096)
}

pub fn file_can_shrink(listener: &Listener) -> Result<RawExporter> {
    let (fd, size, _page) = file_of(&[50])?;
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::FUTURE_WRITE)?;
    let exporter = send(listener, &fd, 1, size)?;
    let _ = rustix::fs::ftruncate(&fd, 0);
    Ok(exporter)
}

pub fn file_too_short(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50], |_| (), |count, _| (count, 1 << 20))
}

pub fn too_few(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50], |_| (), |count, size| (count + 1, size.next_multiple_of(512)))
}

pub fn too_many(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50, 51], |_| (), |count, size| (count - 1, size))
}

pub fn none(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50], |_| (), |_, size| (0, size))
}

pub fn larger_than_file(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50, 51], |page| page[SIZE].store(1 << 16, Relaxed), |count, size| (count, size))
}

pub fn of_absurd_size(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50], |page| page[SIZE].store(u64::MAX - 3, Relaxed), |count, size| (count, size))
}

pub fn of_absurd_metadata(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50], |page| page[METADATA].store(1 << 62, Relaxed), |count, size| (count, size))
}

pub fn at_another_place(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50], |page| page[4].store(8, Relaxed), |count, size| (count, size))
}

pub fn twice(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50, 50], |_| (), |count, size| (count, size))
}

pub fn of_the_future(listener: &Listener) -> Result<RawExporter> {
    with_file(listener, &[50, 100], |_| (), |count, size| (count, size))
}

/// Each file is within the reader's limit; together they are not.
pub fn beyond_limit(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.next = Sequence(100);
    for sequence in [50, 51] {
        let (fd, size, _page) = file_of_sized(&[sequence], 40 << 20)?;
        Seals::SizeAndWrites.put_on(&fd)?;
        let message = ToReader::KeptUnits { before: Sequence(100), count: 1, size };
        exporter.send_message(&message, Some(fd.as_fd()))?;
    }
    exporter.publish(1, SLOT);
    Ok(exporter)
}

/// Messages without end.
pub fn without_end(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    let (fd, size, _page) = file_of(&[50, 51, 52])?;
    Seals::SizeAndWrites.put_on(&fd)?;
    let message = ToReader::KeptUnits { before: Sequence(100), count: 3, size };
    while exporter.send_message(&message, Some(fd.as_fd())).is_ok() {
        exporter.wake_reader();
    }
    Ok(exporter)
}

/// The content changes while it is read, and the records do not.
pub fn written(listener: &Listener) -> Result<RawExporter> {
    let (fd, size, page) = file_of(&[50, 51])?;
    Seals::SizeAndWrites.put_on(&fd)?;
    let exporter = send(listener, &fd, 2, size)?;
    let mut random = Random::new(7);
    let end = Instant::now() + AFTERWARDS;
    while Instant::now() < end {
        page[RECORD + 4].store(random.word(), Relaxed);
    }
    Ok(exporter)
}

/// Records change while they are read.
pub fn scribbled(listener: &Listener) -> Result<RawExporter> {
    let sequences: Vec<u64> = (10..90).collect();
    let (fd, size, page) = file_of(&sequences)?;
    // Without this one the reader might get through.
    page[page.len() - (UNIT as usize + 16) / 8 - RECORD..][SIZE].store(u64::MAX, Relaxed);
    Seals::SizeAndWrites.put_on(&fd)?;
    let exporter = send(listener, &fd, sequences.len() as u32, size)?;
    let mut random = Random::new(8);
    let end = Instant::now() + AFTERWARDS;
    while Instant::now() < end && !exporter.channel.hangs_up(std::time::Duration::ZERO) {
        page[random.word() as usize % page.len()].store(random.word(), Relaxed);
    }
    Ok(exporter)
}
