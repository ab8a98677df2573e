// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by the welcome and its pages and sockets.

use crate::Result;
use frameshare::{FenceKind, Reason, Sequence};
use frameshare_protocol::{
    message::{EVENT_HANDLE, ToReader},
    page::{claims_size, queue_size},
};
use frameshare_tests::raw::{Listener, Offer, PATIENCE, RawExporter, Seals, encoded, memfd};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::{fs::File, os::fd::OwnedFd, thread, time::Duration};

const QUEUE: usize = 0;
const CLAIMS: usize = 1;
const METADATA: usize = 2;
const WAKE: usize = 3;

fn offer() -> Result<Offer> {
    Ok(Offer::new(4, 2, 1)?)
}

fn send(offer: Offer, listener: &Listener) -> Result<RawExporter> {
    Ok(offer.send(listener, PATIENCE)?)
}

/// Sends another packet in place of the welcome.
fn send_message(packet: &[u8], listener: &Listener) -> Result<RawExporter> {
    Ok(offer()?.send_as(packet, listener, PATIENCE)?)
}

/// Sends another file in place of one of the welcome.
fn with(at: usize, fd: OwnedFd, listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds[at] = fd;
    send(offer, listener)
}

fn sealed(size: u64, seals: Seals) -> Result<OwnedFd> {
    let fd = memfd(size)?;
    seals.put_on(&fd)?;
    Ok(fd)
}

pub fn garbage(listener: &Listener) -> Result<RawExporter> {
    send_message(&[0xaa; 100], listener)
}

pub fn cut_short(listener: &Listener) -> Result<RawExporter> {
    let packet = encoded(ToReader::Welcome(offer()?.welcome).encode());
    send_message(&packet[..packet.len() - 3], listener)
}

/// Accepts the connection, and sends nothing.
pub fn never(listener: &Listener) -> Result<RawExporter> {
    let (channel, kept) = (listener.accept(PATIENCE)?, offer()?);
    Ok(kept.on(channel))
}

pub fn something_else(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.clear();
    Ok(offer.send_as(&encoded(ToReader::EndOfStream { before: Sequence(1) }.encode()), listener, PATIENCE)?)
}

pub fn refusal(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.clear();
    let text = "no\n\x1b[2J".repeat(5000);
    let refusal = ToReader::Refused { reason: Reason::NoCreditLeft, text };
    Ok(offer.send_as(&encoded(refusal.encode()), listener, PATIENCE)?)
}

pub fn no_credit(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.credit = 0;
    send(offer, listener)
}

pub fn much_credit(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.credit = u32::MAX;
    send(offer, listener)
}

pub fn many_areas(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.areas = u32::MAX;
    send(offer, listener)
}

pub fn timeline(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.fence = FenceKind::Timeline;
    offer.fds.push(sealed(4096, Seals::Size)?);
    send(offer, listener)
}

pub fn events(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.welcome.fence = FenceKind::Event;
    offer.welcome.events = vec![7; 2 * 4 * EVENT_HANDLE];
    send(offer, listener)
}

pub fn without_descriptors(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.clear();
    send(offer, listener)
}

pub fn one_less(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.pop();
    send(offer, listener)
}

pub fn one_more(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    offer.fds.push(sealed(4096, Seals::Size)?);
    send(offer, listener)
}

pub fn many_descriptors(listener: &Listener) -> Result<RawExporter> {
    let mut offer = offer()?;
    while offer.fds.len() < 253 {
        offer.fds.push(offer.fds[0].try_clone()?);
    }
    send(offer, listener)
}

pub fn queue_is_a_pipe(listener: &Listener) -> Result<RawExporter> {
    with(QUEUE, rustix::pipe::pipe()?.0, listener)
}

pub fn queue_is_a_folder(listener: &Listener) -> Result<RawExporter> {
    with(QUEUE, File::open("/")?.into(), listener)
}

/// Sends a file that is sealed against writes but not against shrinking, and shrinks it when it is
/// mapped.
fn shrinking(at: usize, size: usize, listener: &Listener) -> Result<RawExporter> {
    let file = memfd(size as u64)?;
    if at != CLAIMS {
        fcntl_add_seals(&file, SealFlags::FUTURE_WRITE)?;
    }
    let mut offer = offer()?;
    offer.fds[at] = file.try_clone()?;
    let exporter = send(offer, listener)?;
    // The reader loads from the page continually from the time it is mapped.
    for _ in 0..100 {
        exporter.wake_reader();
        thread::sleep(Duration::from_millis(1));
    }
    ftruncate(file, 0)?;
    exporter.wake_reader();
    Ok(exporter)
}

pub fn queue_shrinks(listener: &Listener) -> Result<RawExporter> {
    shrinking(QUEUE, queue_size(4), listener)
}

pub fn claims_shrink(listener: &Listener) -> Result<RawExporter> {
    shrinking(CLAIMS, claims_size(4), listener)
}

pub fn queue_too_short(listener: &Listener) -> Result<RawExporter> {
    with(QUEUE, sealed(queue_size(4) as u64 - 1, Seals::SizeAndWrites)?, listener)
}

/// A page without its magic number.
pub fn queue_of_nothing(listener: &Listener) -> Result<RawExporter> {
    with(QUEUE, sealed(queue_size(4) as u64, Seals::SizeAndWrites)?, listener)
}

/// No huge pages are reserved, so that a load raises SIGBUS.
pub fn claims_of_huge_pages(listener: &Listener) -> Result<RawExporter> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
    let huge = memfd_create("huge", flags)?;
    ftruncate(&huge, 2 << 20)?;
    Seals::Size.put_on(&huge)?;
    with(CLAIMS, huge, listener)
}

pub fn metadata_with_holes(listener: &Listener) -> Result<RawExporter> {
    let sparse = memfd(0)?;
    ftruncate(&sparse, 1 << 40)?;
    Seals::SizeAndWrites.put_on(&sparse)?;
    with(METADATA, sparse, listener)
}

/// Holes could be punched into a writable file later.
pub fn metadata_writable(listener: &Listener) -> Result<RawExporter> {
    let metadata = memfd(1 << 20)?;
    fcntl_add_seals(&metadata, SealFlags::SHRINK)?;
    with(METADATA, metadata, listener)
}

pub fn wake_is_a_pipe(listener: &Listener) -> Result<RawExporter> {
    with(WAKE, rustix::pipe::pipe()?.1, listener)
}
