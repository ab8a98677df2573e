//! One run of the sink, from READY to READY: the exporter, and how a buffer's frame gets to it.

use super::copies::{Copies, Reason};
use crate::{
    flags, meta,
    pool::{Home, memory},
};
use frameshare::{
    Interrupt, Plane,
    exporter::{AcquireError, Exporter, Frame, PublishError, Purpose, Slot},
    fence::Written,
};
use std::sync::Arc;

/// Bytes of the smallest slot, for streams whose buffers have no size of their own.
const SMALLEST_SLOT: u64 = 4096;

/// A frame that lies in a slot of ours and waits to be published.
pub(super) struct Placed {
    slot: Slot,
    offset: u64,
    size: u64,
    planes: [Plane; gst_video::VIDEO_MAX_PLANES],
    plane_count: usize,
    /// The slot is the buffer's: nobody may write it until all leases have ended.
    in_place: bool,
}

/// When a frame is to be shown and decoded, in ns of `CLOCK_MONOTONIC`, and for how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    pub(super) pts: Option<u64>,
    pub(super) dts: Option<u64>,
    pub(super) duration: Option<u64>,
}

/// Why a frame cannot be put into a slot.
#[derive(Debug)]
pub(super) enum PlaceError {
    /// No slot can be had.
    NoSlot(AcquireError),
    /// The buffer is not what its caps say, in these words.
    BadBuffer(String),
}

pub(super) struct Stream {
    pub(super) exporter: Exporter,
    pub(super) home: Arc<Home>,
    pub(super) interrupt: Interrupt,
    pub(super) copies: Copies,
}

impl Stream {
    pub(super) fn new(exporter: Exporter, interrupt: Interrupt) -> Self {
        let home = Arc::new(Home::new(exporter.clone()));
        Self { exporter, home, interrupt, copies: Copies::default() }
    }

    /// Finds the slot that a buffer lies in, or copies its frame into one; raw video has an `info`.
    pub(super) fn place(
        &self,
        buffer: &gst::BufferRef,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        match self.slot_of(buffer) {
            Ok((slot, offset)) => in_place(slot, offset, buffer, info),
            Err(reason) => {
                let placed = self.copy(buffer, info)?;
                if self.copies.count(reason, placed.size) {
                    gst::info!(super::imp::CAT, "frames are copied: {reason:?}");
                }
                Ok(placed)
            }
        }
    }

    /// The slot that a buffer lies in, and where in it; or why its frame must be copied.
    fn slot_of(&self, buffer: &gst::BufferRef) -> Result<(Slot, u64), Reason> {
        if buffer.n_memory() > 1 {
            return Err(Reason::SeveralMemories);
        }
        if buffer.n_memory() == 0 {
            return Err(Reason::ForeignMemory);
        }
        let memory = buffer.peek_memory(0);
        let slot = match memory::origin(memory) {
            None => return Err(Reason::ForeignMemory),
            Some(memory::Origin::Private) => return Err(Reason::NoFreeSlot),
            Some(memory::Origin::Slot(slot)) if !slot.belongs_to(&self.exporter) => {
                return Err(Reason::OtherStream);
            }
            Some(memory::Origin::Slot(slot)) => slot,
        };
        // Asked of the bytes themselves: what a sub-memory's own offset counts from is its allocator's affair.
        let map = memory.map_readable().map_err(|_| Reason::ForeignMemory)?;
        let start = slot.as_ptr().ok_or(Reason::ForeignMemory)?.as_ptr() as u64;
        let offset = (map.as_ptr() as u64).checked_sub(start);
        let end = offset.and_then(|offset| offset.checked_add(map.size() as u64));
        match offset {
            Some(offset) if end.is_some_and(|end| end <= slot.size()) => Ok((slot.clone(), offset)),
            _ => Err(Reason::ForeignMemory),
        }
    }

    /// A copy of the frame in a slot of its own, in the default layout: of all that is in memory, where that is more
    /// than the caps say, since a crop meta counts from there.
    fn copy(
        &self,
        buffer: &gst::BufferRef,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        let whole = info.and_then(|info| whole(buffer, info));
        let info = whole.as_ref().or(info);
        let size = info.map_or(buffer.size(), |info| info.size());
        // Buffers that grow a little every time shall not ask for a new generation every time.
        let slot_size = match info {
            Some(_) => size as u64,
            None => (size as u64).next_power_of_two().max(SMALLEST_SLOT),
        };
        let slot = self.free_slot(slot_size).map_err(PlaceError::NoSlot)?;
        let bad =
            |what: &str| PlaceError::BadBuffer(format!("a buffer of {} bytes {what} {size}", buffer.size()));
        let memory = memory::wrap(slot.clone(), size, 0, size).ok_or_else(|| bad("does not fit into"))?;
        let mut target = gst::Buffer::new();
        let target = target.get_mut().ok_or_else(|| bad("cannot be copied to"))?;
        target.append_memory(memory);
        let mut placed = Placed {
            slot,
            offset: 0,
            size: size as u64,
            planes: Default::default(),
            plane_count: 0,
            in_place: false,
        };
        match info {
            Some(info) => {
                let from = gst_video::VideoFrameRef::from_buffer_ref_readable(buffer, info)
                    .map_err(|_| bad("does not hold a frame of its caps, which has"))?;
                let mut to = gst_video::VideoFrameRef::from_buffer_ref_writable(target, info)
                    .map_err(|_| bad("cannot be copied to"))?;
                from.copy(&mut to)
                    .map_err(|_| bad("has a video meta that does not go with its caps, of a frame of"))?;
                placed.set_planes(info.offset(), info.stride());
            }
            None => {
                let mut to = target.map_writable().map_err(|_| bad("cannot be copied to"))?;
                buffer.copy_to_slice(0, &mut to).map_err(|_| bad("cannot be read, not even"))?;
            }
        }
        Ok(placed)
    }

    /// A slot to copy into. Buffers that lie unused in upstream's pool make room for it.
    fn free_slot(&self, size: u64) -> Result<Slot, AcquireError> {
        self.exporter.acquire(size, Purpose::Copy).or_else(|_| {
            self.home.trim();
            self.exporter.reclaim();
            self.exporter.acquire(size, Purpose::Copy)
        })
    }

    /// Makes a placed frame available to all readers; waits for the credit of lossless ones. The first after a seam
    /// is marked DISCONT.
    pub(super) fn publish(
        &self,
        placed: &Placed,
        buffer: &gst::Buffer,
        times: Times,
        is_seam: bool,
    ) -> Result<u64, PublishError> {
        let seam = if is_seam { gst::BufferFlags::DISCONT } else { gst::BufferFlags::empty() };
        let counter = |value: u64| (value != gst::ffi::GST_BUFFER_OFFSET_NONE).then_some(value);
        let frame = Frame {
            written: Written::Cpu,
            slot: &placed.slot,
            offset: placed.offset,
            size: placed.size,
            pts: times.pts,
            dts: times.dts,
            duration: times.duration,
            media_offset: counter(buffer.offset()),
            media_offset_end: counter(buffer.offset_end()),
            flags: flags::to_word(flags::of(buffer) | seam),
            planes: &placed.planes[..placed.plane_count],
            metadata: &meta::wire::serialize(buffer, !placed.in_place),
            keep: placed.in_place.then(|| Box::new(buffer.clone()) as _),
        };
        self.exporter.publish(frame, &self.interrupt)
    }
}

impl Placed {
    fn set_planes(&mut self, offsets: &[usize], strides: &[i32]) {
        self.plane_count = offsets.len().min(self.planes.len());
        for (plane, (offset, stride)) in self.planes.iter_mut().zip(offsets.iter().zip(strides)) {
            *plane = Plane { offset: *offset as u64, stride: *stride };
        }
    }
}

/// The layout of a picture in memory that is bigger than its caps say.
fn whole(buffer: &gst::BufferRef, info: &gst_video::VideoInfo) -> Option<gst_video::VideoInfo> {
    let meta = buffer.meta::<gst_video::VideoMeta>()?;
    let (width, height) = (meta.width(), meta.height());
    let holds_more = meta.format() == info.format()
        && width >= info.width()
        && height >= info.height()
        && (width, height) != (info.width(), info.height());
    let whole =
        || gst_video::VideoInfo::builder(info.format(), width, height).interlace_mode(info.interlace_mode());
    holds_more.then(|| whole().build().ok()).flatten()
}

fn in_place(
    slot: Slot,
    offset: u64,
    buffer: &gst::BufferRef,
    info: Option<&gst_video::VideoInfo>,
) -> Result<Placed, PlaceError> {
    let size = buffer.size() as u64;
    let mut placed =
        Placed { slot, offset, size, planes: Default::default(), plane_count: 0, in_place: true };
    if let Some(info) = info {
        match buffer.meta::<gst_video::VideoMeta>() {
            Some(meta) => placed.set_planes(meta.offset(), meta.stride()),
            None => placed.set_planes(info.offset(), info.stride()),
        }
        let planes = &placed.planes[..placed.plane_count];
        if !holds(size, planes, info) {
            return Err(PlaceError::BadBuffer(format!(
                "a buffer of {size} bytes does not hold a frame of its caps with planes {planes:?}"
            )));
        }
    }
    Ok(placed)
}

/// Whether every row of every plane starts inside `size` bytes, and the planes are as many as the format's.
fn holds(size: u64, planes: &[Plane], info: &gst_video::VideoInfo) -> bool {
    let format = info.format_info();
    if planes.len() != info.n_planes() as usize {
        return false;
    }
    planes.iter().enumerate().all(|(index, plane)| {
        // A tiled plane's stride is no number of bytes.
        let rows = match format.is_tiled() {
            true => 1,
            false => rows(info, index),
        };
        let last = i64::from(plane.stride).checked_mul(i64::from(rows) - 1);
        let last = last.and_then(|last| i64::try_from(plane.offset).ok()?.checked_add(last));
        plane.offset <= size && last.is_some_and(|last| (0..=size as i64).contains(&last))
    })
}

/// How many rows a plane has: as many as its first component.
fn rows(info: &gst_video::VideoInfo, plane: usize) -> u32 {
    let component = (0..info.n_components() as usize).find(|c| info.comp_plane(*c as u8) as usize == plane);
    let height = |component: usize| info.format_info().scale_height(component as u8, info.field_height());
    component.map_or(1, height).max(1)
}
