//! One run of the sink, from READY to READY: the exporter, and how a buffer's frame gets to it.

use super::{
    copies::{Copies, Path, Reason},
    gpu::{Gpu, Picture, Surfaces},
    kinds::Export,
};
use crate::{
    flags, meta,
    pool::{Home, cuda::layout, memory},
};
use frameshare::{
    Interrupt, Plane, cuda,
    exporter::{AcquireError, Exporter, Frame, PublishError, Purpose, Slot},
    fence::Written,
};
use gst_cuda::memory::Memory;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Bytes of the smallest slot, for streams whose buffers have no size of their own.
const SMALLEST_SLOT: u64 = 4096;

/// A frame that lies in a slot of ours and waits to be published.
pub(super) struct Placed {
    slot: Slot,
    offset: u64,
    size: u64,
    planes: [Plane; gst_video::VIDEO_MAX_PLANES],
    plane_count: usize,
    path: Path,
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
    /// It was to be shared in place, and cannot be.
    NotInPlace(Reason),
    /// The GPU has failed.
    Gpu(cuda::Error),
}

impl From<cuda::Error> for PlaceError {
    fn from(error: cuda::Error) -> Self {
        Self::Gpu(error)
    }
}

pub(super) struct Stream {
    pub(super) exporter: Exporter,
    pub(super) home: Arc<Home>,
    pub(super) interrupt: Interrupt,
    pub(super) copies: Copies,
    /// What frames on a GPU are written with, or why there is none.
    pub(super) gpu: Result<Gpu, String>,
    pub(super) export: Export,
    pub(super) surfaces: Surfaces,
    /// Frames are shared in host memory for the time being, though there is a GPU.
    in_host: AtomicBool,
}

impl Stream {
    pub(super) fn new(
        exporter: Exporter,
        interrupt: Interrupt,
        gpu: Result<Gpu, String>,
        export: Export,
    ) -> Self {
        let home = Arc::new(Home::new(exporter.clone()));
        Self {
            exporter,
            home,
            interrupt,
            copies: Copies::default(),
            gpu,
            export,
            surfaces: Surfaces::default(),
            in_host: AtomicBool::new(false),
        }
    }

    /// Why frames are in the memory that they are in, where that is known here.
    pub(super) fn memory_why(&self) -> Option<&str> {
        self.gpu.as_ref().err().map(String::as_str)
    }

    /// The GPU that frames are shared on, if they are now.
    fn on_gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref().ok().filter(|_| !self.in_host.load(Relaxed))
    }

    /// New caps: the frames to come are shared in host memory, or on the GPU if there is one.
    pub(super) fn use_host_memory(&self, yes: bool) {
        self.surfaces.end_span(&self.exporter);
        if self.gpu.is_ok() {
            self.in_host.store(yes, Relaxed);
            self.exporter.use_host_memory(yes);
        }
    }

    /// Finds the slot that a buffer lies in, or copies its frame into one; raw video has an `info`.
    pub(super) fn place(
        &self,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        if let Some(gpu) = self.on_gpu() {
            return self.place_on(gpu, buffer, info, true);
        }
        match self.slot_of(buffer) {
            Ok((slot, offset)) => whole_in(slot, offset, buffer, info),
            Err(reason) => {
                let placed = self.copy(buffer, info)?;
                self.count_copy(reason, placed.size);
                Ok(placed)
            }
        }
    }

    fn count_copy(&self, reason: Reason, bytes: u64) {
        if self.copies.count(reason, bytes) {
            gst::info!(super::imp::CAT, "frames are copied: {}", reason.name());
        }
    }

    /// Copies a frame that was placed where not every reader can read it.
    pub(super) fn place_for_all(
        &self,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        match self.on_gpu() {
            Some(gpu) => self.place_on(gpu, buffer, info, false),
            None => self.place(buffer, info),
        }
    }

    /// The same on a GPU. A surface `may_stay` where it is.
    fn place_on(
        &self,
        gpu: &Gpu,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
        may_stay: bool,
    ) -> Result<Placed, PlaceError> {
        let memory = (buffer.n_memory() == 1).then(|| Memory::of(buffer.peek_memory(0))).flatten();
        let (Some(memory), Some(info)) = (memory, info) else { return self.upload(gpu, buffer, info) };
        let reason = match (
            gst_cuda::memory::held::<Slot>(buffer.peek_memory(0)),
            memory::origin(buffer.peek_memory(0)),
        ) {
            (Some(slot), _) if slot.belongs_to(&self.exporter) => {
                return on_gpu_in(slot, 0, Path::Pool, buffer, memory, info);
            }
            (Some(_), _) => Reason::OtherStream,
            (None, Some(_)) => Reason::NoFreeSlot,
            (None, None) if self.export == Export::Copy => Reason::Asked,
            (None, None) if !may_stay => Reason::ReaderCannot,
            (None, None) => match self.surfaces.share(&self.exporter, &gpu.context, buffer, memory) {
                Ok((slot, offset)) => return on_gpu_in(slot, offset, Path::InPlace, buffer, memory, info),
                Err(reason) => reason,
            },
        };
        let for_good = !matches!(reason, Reason::TooManyHeld | Reason::NoFreeSlot | Reason::OtherStream);
        if self.export == Export::InPlace && for_good {
            return Err(PlaceError::NotInPlace(reason));
        }
        let placed = self.copy_on(gpu, buffer, memory, info)?;
        self.count_copy(reason, placed.size);
        Ok(placed)
    }

    /// A copy of a frame of a GPU's, made by the GPU: it may not be there when this returns.
    fn copy_on(
        &self,
        gpu: &Gpu,
        buffer: &gst::Buffer,
        memory: Memory<'_>,
        info: &gst_video::VideoInfo,
    ) -> Result<Placed, PlaceError> {
        let bad = |what: &str| PlaceError::BadBuffer(format!("a buffer of {} bytes {what}", buffer.size()));
        let whole = whole(buffer, info);
        let to = layout(whole.as_ref().unwrap_or(info), &gpu.context);
        let slot = self.free_slot(to.size() as u64).map_err(PlaceError::NoSlot)?;
        let mapped = memory.map().ok_or_else(|| bad("that somebody else is writing"))?;
        let own = memory.info();
        let meta = buffer.meta::<gst_video::VideoMeta>();
        let (offsets, strides) =
            meta.as_ref().map_or((own.offset(), own.stride()), |meta| (meta.offset(), meta.stride()));
        if offsets.len() != to.n_planes() as usize {
            return Err(bad("with another number of planes than its caps say"));
        }
        let from = Picture { address: mapped.address(), size: mapped.size(), offsets, strides };
        gpu.copy(&self.exporter, &slot, &to, &from, &memory.context(), buffer.clone())?;
        Ok(Placed::new(slot, to.size() as u64, Path::Copied, Some(&to)))
    }

    /// A copy of a frame of the host's in GPU memory: it may not be there when this returns.
    fn upload(
        &self,
        gpu: &Gpu,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        let bad = |what: &str| PlaceError::BadBuffer(format!("a buffer of {} bytes {what}", buffer.size()));
        let whole = info.and_then(|info| whole(buffer, info));
        let info = whole.as_ref().or(info);
        let to = info.map(|info| layout(info, &gpu.context));
        let size = to.as_ref().map_or(buffer.size(), |to| to.size());
        let slot_size = slot_size(size, to.is_some());
        let slot = self.free_slot(slot_size).map_err(PlaceError::NoSlot)?;
        gpu.upload(&self.exporter, &slot, size, |target| {
            let (Some(info), Some(to)) = (info, &to) else {
                let mut map = target.map_writable().map_err(|_| bad("that cannot be copied"))?;
                return buffer.copy_to_slice(0, &mut map).map_err(|_| bad("that cannot be read"));
            };
            let flags = gst_video::VideoFrameFlags::empty();
            gst_video::VideoMeta::add_full(
                target,
                flags,
                to.format(),
                to.width(),
                to.height(),
                to.offset(),
                to.stride(),
            )
            .map_err(|_| bad("that cannot be copied"))?;
            copy_picture(buffer, target, info)
        })?;
        self.count_copy(Reason::HostMemory, size as u64);
        Ok(Placed::new(slot, size as u64, Path::Uploaded, to.as_ref()))
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
        let slot = self.free_slot(slot_size(size, info.is_some())).map_err(PlaceError::NoSlot)?;
        let bad =
            |what: &str| PlaceError::BadBuffer(format!("a buffer of {} bytes {what} {size}", buffer.size()));
        let memory = memory::wrap(slot.clone(), size, 0, size).ok_or_else(|| bad("does not fit into"))?;
        let mut target = gst::Buffer::new();
        let target = target.get_mut().ok_or_else(|| bad("cannot be copied to"))?;
        target.append_memory(memory);
        match info {
            Some(info) => copy_picture(buffer, target, info)?,
            None => {
                let mut to = target.map_writable().map_err(|_| bad("cannot be copied to"))?;
                buffer.copy_to_slice(0, &mut to).map_err(|_| bad("cannot be read, not even"))?;
            }
        }
        Ok(Placed::new(slot, size as u64, Path::Copied, info))
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
            written: match (&self.gpu, placed.path) {
                _ if placed.slot.as_ptr().is_some() => Written::Cpu,
                (Ok(gpu), Path::InPlace) => gpu.written_somewhere(),
                (Ok(gpu), _) => gpu.written_here(),
                (Err(_), _) => Written::Somewhere,
            },
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
            metadata: &meta::wire::serialize(buffer, matches!(placed.path, Path::Copied | Path::Uploaded)),
            keep: match placed.path {
                Path::Pool => Some(Box::new(buffer.clone())),
                Path::InPlace => Some(Box::new(self.surfaces.hold(buffer))),
                Path::Copied | Path::Uploaded => None,
            },
        };
        let sequence = self.exporter.publish(frame, &self.interrupt)?;
        self.copies.published(placed.path);
        Ok(sequence)
    }
}

impl Placed {
    /// A frame at the start of a slot.
    fn new(slot: Slot, size: u64, path: Path, info: Option<&gst_video::VideoInfo>) -> Self {
        let mut placed = Self { slot, offset: 0, size, planes: Default::default(), plane_count: 0, path };
        if let Some(info) = info {
            placed.set_planes(info.offset(), info.stride());
        }
        placed
    }

    /// Refuses planes that do not lie in the frame.
    fn check(&self, info: &gst_video::VideoInfo) -> Result<(), PlaceError> {
        let planes = &self.planes[..self.plane_count];
        if holds(self.size, planes, info) {
            return Ok(());
        }
        let size = self.size;
        Err(PlaceError::BadBuffer(format!(
            "a buffer of {size} bytes does not hold a frame of its caps with planes {planes:?}"
        )))
    }

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

/// A frame that lies in a slot of the host's with all its planes.
fn whole_in(
    slot: Slot,
    offset: u64,
    buffer: &gst::BufferRef,
    info: Option<&gst_video::VideoInfo>,
) -> Result<Placed, PlaceError> {
    let mut placed = Placed { offset, ..Placed::new(slot, buffer.size() as u64, Path::Pool, info) };
    match (buffer.meta::<gst_video::VideoMeta>(), info) {
        (Some(meta), Some(info)) => {
            placed.set_planes(meta.offset(), meta.stride());
            placed.check(info)?;
        }
        (None, Some(info)) => placed.check(info)?,
        (_, None) => {}
    }
    Ok(placed)
}

/// A frame that lies in a slot of a GPU's, the memory `offset` bytes behind its start, with all its planes.
fn on_gpu_in(
    slot: Slot,
    offset: u64,
    path: Path,
    buffer: &gst::BufferRef,
    memory: Memory<'_>,
    info: &gst_video::VideoInfo,
) -> Result<Placed, PlaceError> {
    // The map uploads what the CPU may have written.
    let size = memory.map().map(|mapped| mapped.size() as u64).ok_or_else(|| {
        PlaceError::BadBuffer(format!("a buffer of {} bytes that somebody else is writing", buffer.size()))
    })?;
    let own = memory.info();
    let mut placed = Placed { offset, ..Placed::new(slot, size, path, Some(&own)) };
    if let Some(meta) = buffer.meta::<gst_video::VideoMeta>() {
        placed.set_planes(meta.offset(), meta.stride());
    }
    placed.check(info)?;
    Ok(placed)
}

/// Copies a picture by the CPU.
fn copy_picture(
    from: &gst::BufferRef,
    to: &mut gst::BufferRef,
    info: &gst_video::VideoInfo,
) -> Result<(), PlaceError> {
    let size = info.size();
    let bad = |what: &str| PlaceError::BadBuffer(format!("a buffer of {} bytes {what} {size}", from.size()));
    let from = gst_video::VideoFrameRef::from_buffer_ref_readable(from, info)
        .map_err(|_| bad("does not hold a frame of its caps, which has"))?;
    let mut to = gst_video::VideoFrameRef::from_buffer_ref_writable(to, info)
        .map_err(|_| bad("cannot be copied to"))?;
    from.copy(&mut to).map_err(|_| bad("has a video meta that does not go with its caps, of a frame of"))
}

/// Buffers without a size of their own that grow a little every time shall not ask for a new generation every time.
fn slot_size(size: usize, is_fixed: bool) -> u64 {
    if is_fixed { size as u64 } else { (size as u64).next_power_of_two().max(SMALLEST_SLOT) }
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

/// How many rows a plane has.
fn rows(info: &gst_video::VideoInfo, plane: usize) -> u32 {
    u32::try_from(extent(info, plane).0).unwrap_or(u32::MAX)
}

/// How many rows a plane has, and how many bytes of each belong to the picture.
pub(super) fn extent(info: &gst_video::VideoInfo, plane: usize) -> (usize, usize) {
    let format = info.format_info();
    let components = (0..info.n_components() as u8).filter(|c| info.comp_plane(*c) as usize == plane);
    let height = |component| format.scale_height(component, info.field_height()) as usize;
    let rows = components.clone().map(height).next().unwrap_or(1).max(1);
    let bytes = |c: u8| info.comp_width(c) as usize * usize::try_from(info.comp_pstride(c)).unwrap_or(0);
    let bytes = components.map(bytes).max().filter(|bytes| *bytes > 0 && !format.is_complex());
    // Formats that pack several pixels in one word have no stride from pixel to pixel.
    (rows, bytes.unwrap_or(info.stride()[plane].unsigned_abs() as usize))
}
