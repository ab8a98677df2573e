// SPDX-License-Identifier: MIT OR Apache-2.0

//! Publication of a frame, and of the downloads that follow it.

use super::{
    Interrupted,
    departure::Ending,
    download::{self, Downloads},
    link::Link,
    outbox::Packet,
    shared::Shared,
    slot::Slot,
    state::{State, Watch},
    wait::{Awaited, wait_until},
};
use crate::{
    Interrupt,
    fence::Written,
    sys::{Timeout, load_bytes, monotonic_ns, store_bytes},
};
use frameshare_protocol::{
    Descriptor, MemoryKind, Plane,
    limits::{MAX_PLANES, METADATA_AREA},
    message::{Payload, Reason, ToReader},
};
use std::{any::Any, fmt};

/// Maximum number of downloads under way, or finished and waiting for lossless readers.
const MAX_DOWNLOADS: u32 = 4;

/// A frame to be published.
pub struct Frame<'a> {
    /// The slot that holds it.
    pub slot: &'a Slot,
    /// The writer of the frame: the CPU, or work on a GPU stream.
    pub written: Written<'a>,
    /// Bytes from the start of the slot to the start of the frame.
    pub offset: u64,
    /// Size of the frame in bytes.
    pub size: u64,
    /// Presentation time, in ns of `CLOCK_MONOTONIC`.
    pub pts: Option<u64>,
    /// Decoding time, in ns of `CLOCK_MONOTONIC`.
    pub dts: Option<u64>,
    /// Duration in ns.
    pub duration: Option<u64>,
    /// The source's own counter at the frame's start.
    pub media_offset: Option<u64>,
    /// The same counter at its end.
    pub media_offset_end: Option<u64>,
    /// Flags, defined by the publisher.
    pub flags: u64,
    /// Layout of its planes, at most four; none for plain bytes.
    pub planes: &'a [Plane],
    /// Metadata, defined by the publisher.
    pub metadata: &'a [u8],
    /// User data that is dropped when every lease on the publication has ended: a guard that keeps
    /// upstream from writing the frame.
    pub keep: Option<Box<dyn Any + Send>>,
}

impl<'a> Frame<'a> {
    /// A frame of `size` bytes at the start of the slot, without times, planes or metadata.
    pub fn new(slot: &'a Slot, size: u64, written: Written<'a>) -> Self {
        Self {
            slot,
            written,
            offset: 0,
            size,
            pts: None,
            dts: None,
            duration: None,
            media_offset: None,
            media_offset_end: None,
            flags: 0,
            planes: &[],
            metadata: &[],
            keep: None,
        }
    }
}

impl fmt::Debug for Frame<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame").field("slot", self.slot).field("size", &self.size).finish_non_exhaustive()
    }
}

/// The reason why a frame was not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The wait for a reader was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The exporter is closed.
    #[error("the exporter is closed")]
    Closed,
    /// The GPU that the frame was written on has failed.
    #[error("the frame cannot be signalled: {0}")]
    Gpu(frameshare_cuda::Error),
    /// The frame is in adopted memory, which some reader cannot read; no reader has it.
    #[error("not every reader can read adopted memory: {0}")]
    NotForAll(String),
    /// The frame's fields are invalid.
    #[error("the frame cannot be published: {0}")]
    Invalid(&'static str),
}

impl From<Interrupted> for PublishError {
    fn from(Interrupted: Interrupted) -> Self {
        Self::Interrupted
    }
}

pub(super) fn publish(shared: &Shared, frame: Frame<'_>, interrupt: &Interrupt) -> Result<u64, PublishError> {
    let inner = &frame.slot.0;
    if inner.exporter != shared.id {
        return Err(PublishError::Invalid("its slot is another exporter's"));
    }
    if frame.planes.len() > MAX_PLANES
        || frame.metadata.len() as u64 > frameshare_protocol::limits::MAX_PAYLOAD
    {
        return Err(PublishError::Invalid("too many planes or too much metadata"));
    }
    let mut descriptor = Descriptor {
        generation: inner.generation,
        slot: inner.index,
        offset: frame.offset,
        size: frame.size,
        pts: frame.pts,
        dts: frame.dts,
        duration: frame.duration,
        media_offset: frame.media_offset,
        media_offset_end: frame.media_offset_end,
        flags: frame.flags,
        plane_count: frame.planes.len() as u32,
        ..Descriptor::default()
    };
    descriptor.planes[..frame.planes.len()].copy_from_slice(frame.planes);
    descriptor.check_frame(frame.slot.size()).map_err(|invalid| PublishError::Invalid(invalid.field))?;

    let mut frame = Some(frame);
    // Download target: not requested yet, requested without success, or a slot.
    let mut target: Option<Option<Slot>> = None;
    loop {
        let outcome = when_there_is_room(shared, interrupt, |state| {
            if state.closed {
                return Some(Some(Err(PublishError::Closed)));
            }
            if state.would_lose() {
                return None;
            }
            let slot = frame.as_ref()?.slot;
            if let Some(why) = state.not_for_all(slot) {
                return Some(Some(Err(PublishError::NotForAll(why))));
            }
            if target.is_none() && state.wants_download(slot) {
                return Some(None);
            }
            // Every reader has room: from here on only links fail.
            let frame = frame.take()?;
            let target = target.get_or_insert_default();
            Some(Some(state.hand_out(frame, descriptor.clone(), target)))
        })?;
        match outcome {
            Some(Some(outcome)) => return outcome,
            // With the state unlocked: allocation and registration with a GPU take long.
            Some(None) => target = Some(download::target(shared, descriptor.size)),
            None => return Err(PublishError::Closed),
        }
    }
}

/// Runs `publish` until it returns a value: now, or after a full lossless reader has made room.
fn when_there_is_room<T>(
    shared: &Shared,
    interrupt: &Interrupt,
    mut publish: impl FnMut(&mut State) -> Option<T>,
) -> Result<Option<T>, Interrupted> {
    let mut state = shared.lock();
    if let Some(outcome) = state.has_room().then(|| publish(&mut state)).flatten() {
        // Readers are woken first; reclaiming their released frames can wait.
        state.wake_sleepers();
        state.reclaim();
        shared.finish(state);
        return Ok(Some(outcome));
    }
    shared.finish(state);
    let outcome = wait_until(shared, interrupt, Timeout::Never, Awaited::Room, publish)?;
    // The wait has polled only as many readers as it needed.
    shared.with(State::reclaim);
    Ok(outcome)
}

impl State {
    /// Publishes a frame to every reader that has room or can make some. `target` is taken if the
    /// frame is downloaded into it.
    fn hand_out(
        &mut self,
        frame: Frame<'_>,
        mut descriptor: Descriptor,
        target: &mut Option<Slot>,
    ) -> Result<u64, PublishError> {
        // Makes the context current once for all driver calls of the frame. A host frame needs
        // none.
        let gpu = self.config.gpu.clone().filter(|_| frame.slot.as_ptr().is_none());
        let current = gpu.as_ref().map(|gpu| gpu.push()).transpose();
        let _current = match current.and_then(|current| self.signals.begin(frame.written).map(|()| current)) {
            Ok(current) => current,
            Err(error) => {
                // User code in Drop must not run under the lock.
                self.dropped.extend(frame.keep);
                return Err(PublishError::Gpu(error));
            }
        };
        let sequence = self.next;
        self.next += 1;
        self.go_on();
        // Cannot fail: there are as many areas as slots, and fewer leases than slots.
        let Some(area) = self.open_publication(frame.slot.clone(), frame.keep) else {
            self.lose_the_rest();
            return Ok(sequence);
        };
        descriptor.sequence = sequence;
        descriptor.area = area as u32;
        let fits = frame.metadata.len() <= METADATA_AREA;
        if fits {
            descriptor.metadata = frame.metadata.len() as u32;
            store_bytes(&self.metadata, area * METADATA_AREA / 8, frame.metadata);
        }
        // Oversized metadata is encoded once for all readers.
        let bulky = (!fits && !self.links.is_empty()).then(|| {
            let payload = Payload::Inline(frame.metadata.to_vec());
            self.packet_of(&ToReader::Metadata { sequence, payload })
        });
        let bulky = bulky.flatten();

        self.offer_all(false, frame.slot, area, sequence, bulky.as_ref());
        // One call signals the timeline values of all readers; the descriptors follow the signals.
        if let Err(error) = self.signals.flush() {
            self.close(Reason::Failed, &format!("the exporter's GPU has failed: {error}"));
            self.end_lease(area);
            return Err(PublishError::Closed);
        }
        descriptor.published = monotonic_ns();
        self.publish_offered(&descriptor);
        if let Some(to) = target.take_if(|_| self.wants_download(frame.slot)) {
            self.start_download(frame.slot, to, area, descriptor, bulky);
        }
        self.lose_the_rest();
        self.end_lease(area);
        Ok(sequence)
    }

    /// Returns whether every reader can lease one more frame, without polling for releases.
    fn has_room(&self) -> bool {
        self.downloads.is_none() && !self.links.iter().any(Link::is_full)
    }

    /// Returns whether a publication now would cost a lossless reader a frame.
    fn would_lose(&self) -> bool {
        let in_host = self.kind() == MemoryKind::Host;
        let behind = self.is_downloading() && (in_host || !self.may_download());
        let full =
            |link: &Link| (link.downloads && behind) || (link.is_full() && (in_host || !link.downloads));
        self.links.iter().any(|link| link.is_lossless() && full(link))
    }

    /// Leases a frame in `slot` to every reader that gets it there and has room or can make some.
    /// GPU frames are not for readers of downloads, and downloads are for those only.
    fn offer_all(
        &mut self,
        is_download: bool,
        slot: &Slot,
        area: usize,
        sequence: u64,
        bulky: Option<&Packet>,
    ) {
        let in_host = slot.as_ptr().is_some();
        // A frame that is published straight from host memory must not overtake downloads under
        // way.
        let passes = !is_download && self.is_downloading();
        let mut index = 0;
        while index < self.links.len() {
            let link = &mut self.links[index];
            let gets = if link.downloads { in_host && !passes } else { !is_download };
            if !(gets && link.may_get(sequence)) {
                index += 1;
                continue;
            }
            match self.offer(index, slot, area, sequence, bulky) {
                Ok(()) => index += 1,
                Err(ending) => self.drop_link(index, &ending),
            }
        }
    }

    /// Publishes the offered frame to all readers.
    fn publish_offered(&mut self, descriptor: &Descriptor) {
        for link in &mut self.links {
            if link.publish(descriptor) {
                self.sleepers.push(link.wake.clone());
            }
        }
    }

    /// Marks undelivered frames as lost, except for readers of downloads, which wait for downloads
    /// under way and for the frames after them: a frame that was reported lost is never delivered.
    fn lose_the_rest(&mut self) {
        let on_its_way = self.downloads.as_ref().and_then(Downloads::first);
        for link in &mut self.links {
            let next = on_its_way.filter(|_| link.downloads).unwrap_or(self.next);
            if link.lose_before(next) {
                self.sleepers.push(link.wake.clone());
            }
        }
    }

    /// Returns whether one more download may start. Each takes a GPU slot, which the credit of its
    /// readers covers since they lease none there, and one area beyond all credit, of which one
    /// must be left for the next frame.
    fn may_download(&self) -> bool {
        let readers = self.links.iter().filter(|link| link.downloads);
        let slots = readers.map(|link| link.info.credit).sum();
        let areas = self.config.max_slots.saturating_sub(self.credit() + 1);
        let most = MAX_DOWNLOADS.min(slots).min(areas) as usize;
        self.downloads.as_ref().is_some_and(|downloads| downloads.len() < most)
    }

    /// Returns whether a frame in this slot is downloaded if it is published now.
    fn wants_download(&self, slot: &Slot) -> bool {
        slot.as_ptr().is_none() && self.links.iter().any(|link| link.downloads) && self.may_download()
    }

    /// Starts the download of a frame for readers of host memory.
    fn start_download(
        &mut self,
        from: &Slot,
        to: Slot,
        area: usize,
        descriptor: Descriptor,
        bulky: Option<Packet>,
    ) {
        let Some(downloads) = &mut self.downloads else { return };
        if downloads.start(&self.signals, from, to, area, descriptor, bulky).is_ok() {
            self.watch_wanted = Watch::Close;
            self.add_lease(area);
        }
    }

    /// Publishes finished downloads in order, until a lossless reader has no room.
    pub(super) fn deliver_downloads(&mut self) {
        loop {
            let full = |link: &Link| link.downloads && link.is_lossless() && link.is_full();
            let Some(downloads) = self.downloads.as_mut().filter(|_| !self.links.iter().any(full)) else {
                return;
            };
            let download = match downloads.next() {
                Ok(Some(download)) => download,
                Ok(None) => return,
                Err(error) => {
                    // Failed work uses nothing any more.
                    let areas = downloads.give_up();
                    self.end_leases(areas);
                    return self.close(Reason::Failed, &format!("the exporter's GPU has failed: {error}"));
                }
            };
            let sequence = download.descriptor.sequence;
            self.end_lease(download.area);
            // A publication of its own: readers lease the host slot, and the GPU slot is free.
            if let Some(area) = self.open_publication(download.slot.clone(), None) {
                let mut descriptor = Descriptor { area: area as u32, ..download.descriptor.clone() };
                descriptor.published = monotonic_ns();
                self.copy_metadata(download.area, area, descriptor.metadata as usize);
                self.offer_all(true, &download.slot, area, sequence, download.bulky.as_ref());
                self.publish_offered(&descriptor);
                self.end_lease(area);
            }
            self.lose_the_rest();
            if let Some(downloads) = &mut self.downloads {
                downloads.recycle(download);
            }
        }
    }

    /// Copies the metadata of one publication to another. The source area has not been used again:
    /// the caller has just ended the last lease on it, and nothing has been published since.
    fn copy_metadata(&self, from: usize, to: usize, length: usize) {
        let at = |area: usize| area * METADATA_AREA / 8;
        store_bytes(&self.metadata, at(to), &load_bytes(&self.metadata, at(from), length));
    }

    /// Leases a frame to one reader, if it has room or can make some.
    fn offer(
        &mut self,
        index: usize,
        slot: &Slot,
        area: usize,
        sequence: u64,
        bulky: Option<&Packet>,
    ) -> Result<(), Ending> {
        let room = self.make_room(index)?;
        let generation = self.generations.iter().find(|one| one.id == slot.0.generation);
        let link = &mut self.links[index];
        let (Some(entry), Some(generation)) = (room, generation) else { return Ok(()) };
        let kind = generation.kind;
        link.introduce(slot, kind, generation.is_foreign(), generation.pool())?;
        if let Some(message) = bulky {
            link.send_packet(message)?;
        }
        link.offer(entry, area, sequence, kind, &mut self.signals)?;
        // Has the service thread send the waiting messages.
        self.links_changed |= link.has_backlog();
        self.add_lease(area);
        Ok(())
    }
}
