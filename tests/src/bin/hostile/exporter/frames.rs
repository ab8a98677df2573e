// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attacks by descriptors and the frames that they describe.

use super::{AFTERWARDS, SLOT, accept, wait_until_taken};
use crate::Result;
use frameshare::{AreaIndex, Descriptor, Sequence, SlotId};
use frameshare_protocol::limits::METADATA_AREA;
use frameshare_tests::random::Random;
use frameshare_tests::raw::{Listener, Offer, PATIENCE, Page, RawExporter, Seals, memfd};
use std::{os::fd::AsFd, sync::atomic::Ordering::Relaxed, time::Instant};

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
