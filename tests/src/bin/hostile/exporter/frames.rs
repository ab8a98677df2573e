// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by descriptors and the frames that they describe.

use super::{AFTERWARDS, SLOT, accept, wait_until_taken};
use crate::Result;
use frameshare::{AreaIndex, Descriptor, Sequence, SlotId, monotonic_ns};
use frameshare_protocol::{
    limits::{LARGE_AREA, METADATA_AREA},
    message::ToReader,
    page::queue,
};
use frameshare_tests::random::Random;
use frameshare_tests::raw::{Listener, Offer, PATIENCE, Page, RawExporter, Seals, memfd};
use std::{
    os::fd::AsFd,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

/// Frames of an exporter that does nothing wrong.
const HONEST: u64 = 100;

/// Publishes frames, each after the reader has taken the ones before, and ends the stream: the
/// control of all attacks. A reader that refused each handshake would survive them, too.
pub fn honest(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    while exporter.next <= Sequence(HONEST) {
        wait_until_taken(&exporter);
        exporter.publish(1, SLOT);
    }
    exporter.send_message(&ToReader::EndOfStream { before: exporter.next }, None)?;
    exporter.wake_reader();
    Ok(exporter)
}

/// Numbers at which 32-bit and 64-bit ones end or change their sign.
const ENDS: [u64; 9] = [
    0,
    i32::MAX as u64,
    u32::MAX as u64,
    1 << 32,
    i64::MAX as u64 - 1,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX - 1,
    u64::MAX,
];

/// Each time and each flag of a frame is at one of its ends, alone and together with all others,
/// and so is the number of messages that the exporter says it has sent.
pub fn numbers_at_their_ends(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = Offer::new(4, 2, 1)?.send(listener, PATIENCE)?;
    exporter.format("video/x-raw,format=NV12,width=64,height=64,framerate=30/1")?;
    exporter.slot(1, SLOT)?;
    let set: [fn(&mut Descriptor, u64); 7] = [
        |frame, end| frame.pts = Some(end),
        |frame, end| frame.dts = Some(end),
        |frame, end| frame.duration = Some(end),
        |frame, end| frame.media_offset = Some(end),
        |frame, end| frame.media_offset_end = Some(end),
        |frame, end| frame.published = end,
        |frame, end| frame.flags = end,
    ];
    for end in ENDS {
        for one in set.iter().map(std::slice::from_ref).chain([&set[..]]) {
            wait_until_taken(&exporter);
            let slot = SlotId { generation: 1, index: 0 };
            let mut frame = Descriptor { slot, size: SLOT, published: monotonic_ns(), ..Default::default() };
            one.iter().for_each(|set| set(&mut frame, end));
            exporter.queue[queue::SENT].store(end, Relaxed);
            exporter.publish_as(frame);
        }
    }
    Ok(exporter)
}

/// All frames up to the last possible number are said not to be for this reader, and one of them
/// comes after that.
pub fn skipped_to_the_end(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    wait_until_asleep(&exporter);
    exporter.send_message(&ToReader::Skipped { before: Sequence(u64::MAX) }, None)?;
    exporter.queue[queue::HEAD].store(u64::MAX, Relaxed);
    exporter.producer.take_sleeper();
    exporter.wake_reader();
    wait_until_asleep(&exporter);
    exporter.next = Sequence((1 << 62) - 2);
    exporter.publish(1, SLOT);
    Ok(exporter)
}

/// Waits until the reader has nothing to do.
fn wait_until_asleep(exporter: &RawExporter) {
    let end = Instant::now() + PATIENCE;
    while !exporter.producer.reader_sleeps() && Instant::now() < end {
        thread::sleep(Duration::from_millis(1));
    }
}

fn publish(listener: &Listener, descriptor: Descriptor) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.publish_as(Descriptor { slot: SlotId { generation: 1, ..descriptor.slot }, ..descriptor });
    Ok(exporter)
}

pub fn outside(listener: &Listener) -> Result<RawExporter> {
    publish(listener, Descriptor { offset: u64::MAX - 10, size: 20, ..Default::default() })
}

pub fn of_no_slot(listener: &Listener) -> Result<RawExporter> {
    publish(
        listener,
        Descriptor { slot: SlotId { generation: 0, index: 3 }, size: SLOT, ..Default::default() },
    )
}

/// Sequence numbers must rise.
pub fn again(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.publish(1, SLOT);
    wait_until_taken(&exporter);
    exporter.next = Sequence(1);
    exporter.publish(1, SLOT);
    Ok(exporter)
}

/// The largest number of lost frames that can be counted.
pub fn far_ahead(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    exporter.next = Sequence((1 << 62) - 2);
    exporter.publish(1, SLOT);
    Ok(exporter)
}

pub fn metadata_nowhere(listener: &Listener) -> Result<RawExporter> {
    let (area, metadata) = (u32::MAX, METADATA_AREA as u32);
    publish(listener, Descriptor { area: AreaIndex(area), metadata, size: SLOT, ..Default::default() })
}

/// A frame with more metadata than an area takes, in area 1.
fn with_much_metadata() -> Descriptor {
    let metadata = METADATA_AREA as u32 + 1;
    let slot = SlotId { generation: 1, index: 0 };
    Descriptor { slot, area: AreaIndex(1), metadata, size: SLOT, ..Default::default() }
}

/// Sends large areas: a file of `size` bytes, sealed or not.
fn send_large_areas(exporter: &mut RawExporter, count: u32, size: usize, seals: Seals) -> Result<()> {
    let file = memfd(size as u64)?;
    seals.put_on(&file)?;
    Ok(exporter.send_message(&ToReader::LargeAreas { count }, Some(file.as_fd()))?)
}

pub fn metadata_without_large_areas(listener: &Listener) -> Result<RawExporter> {
    publish(listener, with_much_metadata())
}

pub fn metadata_behind_large_areas(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    send_large_areas(&mut exporter, 1, LARGE_AREA, Seals::SizeAndWrites)?;
    exporter.publish_as(with_much_metadata());
    Ok(exporter)
}

pub fn large_areas_twice(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    for _ in 0..2 {
        send_large_areas(&mut exporter, 2, 2 * LARGE_AREA, Seals::SizeAndWrites)?;
    }
    exporter.publish_as(with_much_metadata());
    Ok(exporter)
}

pub fn large_areas_too_short(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    send_large_areas(&mut exporter, 2, LARGE_AREA, Seals::SizeAndWrites)?;
    exporter.publish_as(with_much_metadata());
    Ok(exporter)
}

pub fn large_areas_unsealed(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = accept(listener)?;
    send_large_areas(&mut exporter, 2, 2 * LARGE_AREA, Seals::Size)?;
    exporter.publish_as(with_much_metadata());
    Ok(exporter)
}

/// A small frame claims a large image.
pub fn overlapping_rows(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = Offer::new(4, 2, 1)?.send(listener, PATIENCE)?;
    exporter.publish_overlapping_rows()?;
    Ok(exporter)
}

/// The frame's content changes all the time.
pub fn written(listener: &Listener) -> Result<RawExporter> {
    let mut exporter = Offer::new(4, 2, 1)?.send(listener, PATIENCE)?;
    exporter.format("video/x-raw,format=NV12,width=64,height=64,framerate=30/1")?;
    let file = memfd(SLOT)?;
    let frame = Page::writable(&file, SLOT as usize)?;
    Seals::SizeAndWrites.put_on(&file)?;
    exporter.slot_in(1, SLOT, file.as_fd())?;
    let end = Instant::now() + AFTERWARDS;
    let mut random = Random::new(1);
    while Instant::now() < end {
        exporter.publish(1, SLOT);
        for word in frame.iter() {
            word.store(random.word(), Relaxed);
        }
    }
    Ok(exporter)
}
