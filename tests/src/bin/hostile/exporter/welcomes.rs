// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by the welcome and its pages and sockets.

use crate::Result;
use frameshare::{FenceKind, Reason};
use frameshare_protocol::{
    message::{EVENT_HANDLE, ToReader},
    page::{claims_size, queue_size},
};
use frameshare_tests::raw::{Door, Offer, PATIENCE, RawExporter, Seals, encoded, memfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::{fs::File, os::fd::OwnedFd, thread, time::Duration};

const QUEUE: usize = 0;
const CLAIMS: usize = 1;
const METADATA: usize = 2;
const WAKE: usize = 3;

fn offer() -> Result<Offer> {
    Ok(Offer::new(4, 2, 1)?)
}

fn send(offer: Offer, door: &Door) -> Result<RawExporter> {
    Ok(offer.send(door, PATIENCE)?)
}

/// Sends another packet in place of the welcome.
fn say(packet: &[u8], door: &Door) -> Result<RawExporter> {
    Ok(offer()?.send_as(packet, door, PATIENCE)?)
}

/// Sends another file in place of one of the welcome.
fn with(at: usize, fd: OwnedFd, door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds[at] = fd;
    send(offer, door)
}

fn sealed(size: u64, seals: Seals) -> Result<OwnedFd> {
    let fd = memfd(size)?;
    seals.put_on(&fd)?;
    Ok(fd)
}

pub fn garbage(door: &Door) -> Result<RawExporter> {
    say(&[0xaa; 100], door)
}

pub fn cut_short(door: &Door) -> Result<RawExporter> {
    let packet = encoded(ToReader::Welcome(offer()?.welcome).encode());
    say(&packet[..packet.len() - 3], door)
}

/// Accepts the connection, and sends nothing.
pub fn never(door: &Door) -> Result<RawExporter> {
    let (channel, kept) = (door.accept(PATIENCE)?, offer()?);
    Ok(kept.on(channel))
}

pub fn something_else(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.clear();
    Ok(offer.send_as(&encoded(ToReader::EndOfStream { before: 1 }.encode()), door, PATIENCE)?)
}

pub fn refusal(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.clear();
    let text = "no\n\x1b[2J".repeat(5000);
    let refusal = ToReader::Refused { reason: Reason::NoCreditLeft, text };
    Ok(offer.send_as(&encoded(refusal.encode()), door, PATIENCE)?)
}

pub fn no_credit(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.credit = 0;
    send(offer, door)
}

pub fn much_credit(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.credit = u32::MAX;
    send(offer, door)
}

pub fn many_areas(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.areas = u32::MAX;
    send(offer, door)
}

pub fn timeline(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.fence = FenceKind::Timeline;
    offer.fds.push(sealed(4096, Seals::Size)?);
    send(offer, door)
}

pub fn events(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.fence = FenceKind::Event;
    offer.welcome.events = vec![7; 2 * 4 * EVENT_HANDLE];
    send(offer, door)
}

pub fn without_descriptors(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.clear();
    send(offer, door)
}

pub fn one_less(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.pop();
    send(offer, door)
}

pub fn one_more(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.push(sealed(4096, Seals::Size)?);
    send(offer, door)
}

pub fn many_descriptors(door: &Door) -> Result<RawExporter> {
    let mut offer = offer()?;
    while offer.fds.len() < 253 {
        offer.fds.push(offer.fds[0].try_clone()?);
    }
    send(offer, door)
}

pub fn queue_is_a_pipe(door: &Door) -> Result<RawExporter> {
    with(QUEUE, rustix::pipe::pipe()?.0, door)
}

pub fn queue_is_a_folder(door: &Door) -> Result<RawExporter> {
    with(QUEUE, File::open("/")?.into(), door)
}

/// Sends a file that is sealed against writes but not against shrinking, and shrinks it when it is
/// mapped.
fn shrinking(at: usize, size: usize, door: &Door) -> Result<RawExporter> {
    let file = memfd(size as u64)?;
    if at != CLAIMS {
        fcntl_add_seals(&file, SealFlags::FUTURE_WRITE)?;
    }
    let mut offer = offer()?;
    offer.fds[at] = file.try_clone()?;
    let exporter = send(offer, door)?;
    // The reader loads from the page continually from the time it is mapped.
    for _ in 0..100 {
        exporter.ring();
        thread::sleep(Duration::from_millis(1));
    }
    ftruncate(file, 0)?;
    exporter.ring();
    Ok(exporter)
}

pub fn queue_shrinks(door: &Door) -> Result<RawExporter> {
    shrinking(QUEUE, queue_size(4), door)
}

pub fn claims_shrink(door: &Door) -> Result<RawExporter> {
    shrinking(CLAIMS, claims_size(4), door)
}

pub fn queue_too_short(door: &Door) -> Result<RawExporter> {
    with(QUEUE, sealed(queue_size(4) as u64 - 1, Seals::SizeAndWrites)?, door)
}

/// A page without its magic number.
pub fn queue_of_nothing(door: &Door) -> Result<RawExporter> {
    with(QUEUE, sealed(queue_size(4) as u64, Seals::SizeAndWrites)?, door)
}

/// No huge pages are reserved, so that a load raises SIGBUS.
pub fn claims_of_huge_pages(door: &Door) -> Result<RawExporter> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let huge = memfd_create("huge", flags)?;
    ftruncate(&huge, 2 << 20)?;
    Seals::Size.put_on(&huge)?;
    with(CLAIMS, huge, door)
}

pub fn metadata_with_holes(door: &Door) -> Result<RawExporter> {
    let sparse = memfd(0)?;
    ftruncate(&sparse, 1 << 40)?;
    Seals::SizeAndWrites.put_on(&sparse)?;
    with(METADATA, sparse, door)
}

/// Holes could be punched into a writable file later.
pub fn metadata_writable(door: &Door) -> Result<RawExporter> {
    let metadata = memfd(1 << 20)?;
    fcntl_add_seals(&metadata, SealFlags::SHRINK)?;
    with(METADATA, metadata, door)
}

pub fn wake_is_a_pipe(door: &Door) -> Result<RawExporter> {
    with(WAKE, rustix::pipe::pipe()?.1, door)
}
