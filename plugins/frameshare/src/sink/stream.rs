// SPDX-License-Identifier: MIT OR Apache-2.0

//! One run of the sink, from READY to READY: the exporter, and the placement of frames.

use super::{
    copy_stats::{CopyReason, CopyStats, Path},
    cuda::{Decoder, Gpu, NoGpu, Surfaces},
    failure::Failure,
    kinds::{Export, Memory},
    log::CAT,
    placed::{PlaceError, Placed, copy_picture, slot_size, whole},
    settings::Settings,
    waiting::Waiting,
};
use crate::{
    ffi::{buffer_flags::all_flags, slot_memory},
    flags, meta,
    pool::SlotAllocator,
    times::Times,
};
use frameshare::{
    Sequence, Wait,
    exporter::{AcquireError, Exporter, Frame, History, PublishError, Purpose, Slot, Unit},
    fence::Written,
};
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

/// A frame's place in the stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) times: Times,
    /// Its arrival in the sink, in ns of `CLOCK_MONOTONIC`.
    pub(super) arrived: Option<u64>,
    /// It follows a discontinuity, and is marked DISCONT.
    pub(super) is_discont: bool,
    /// Time after which only lossless readers get it, in ns of `CLOCK_MONOTONIC`.
    pub(super) late_after: Option<u64>,
    pub(super) unit: Unit,
}

pub(super) struct Stream {
    pub(super) exporter: Exporter,
    pub(super) slots: Arc<SlotAllocator>,
    pub(super) waiting: Waiting,
    pub(super) failure: Failure,
    pub(super) copy_stats: CopyStats,
    /// Metas that do not cross.
    pub(super) dropped_metas: meta::wire::Dropped,
    /// Resources for GPU frames, once there are some.
    gpu: OnceLock<Gpu>,
    /// The reason why there is no GPU so far.
    no_gpu: NoGpu,
    pub(super) export: Export,
    /// Frames of raw video that are kept for readers that join later.
    pub(super) history: History,
    /// Time after the last frame from which on a joining reader gets a kept one.
    pub(super) history_pause: Duration,
    pub(super) surfaces: Surfaces,
    pub(super) decoder: Decoder,
    /// Upstream's dma-bufs may be shared in place.
    pub(super) shares_dma_bufs: bool,
    /// Some have been, and are not retired.
    pub(super) has_shared_dma_bufs: AtomicBool,
    /// Frames are currently shared in host memory, although there is a GPU.
    in_host: AtomicBool,
    /// Frames in host memory have the default layout of their format.
    is_compact: AtomicBool,
    /// Devices alone know the layout of frames: they are shared in place or not at all.
    has_device_layout: AtomicBool,
}

impl Stream {
    pub(super) fn new(
        exporter: Exporter,
        gpu: Result<Gpu, NoGpu>,
        settings: &Settings,
        history: History,
    ) -> Self {
        let slots = Arc::new(SlotAllocator::new(exporter.clone()));
        let (gpu, no_gpu) = match gpu {
            Ok(gpu) => (OnceLock::from(gpu), NoGpu::NotYet),
            Err(why) => (OnceLock::new(), why),
        };
        Self {
            waiting: Waiting::new(exporter.interrupt()),
            exporter,
            slots,
            failure: Failure::default(),
            copy_stats: CopyStats::default(),
            dropped_metas: meta::wire::Dropped::default(),
            gpu,
            no_gpu,
            export: settings.export,
            history,
            history_pause: settings.config.history_pause,
            surfaces: Surfaces::default(),
            decoder: Decoder::default(),
            shares_dma_bufs: settings.memory == Memory::Auto,
            has_shared_dma_bufs: AtomicBool::new(false),
            in_host: AtomicBool::new(false),
            is_compact: AtomicBool::new(false),
            has_device_layout: AtomicBool::new(false),
        }
    }

    /// The GPU, if there is one yet.
    pub(super) fn gpu(&self) -> Option<&Gpu> {
        self.gpu.get()
    }

    /// Returns whether the first caps with CUDA memory bring a GPU.
    pub(super) fn awaits_gpu(&self) -> bool {
        self.gpu.get().is_none() && matches!(self.no_gpu, NoGpu::NotYet)
    }

    /// Shares frames on a GPU from now on.
    pub(super) fn use_gpu(&self, gpu: Gpu) -> Result<(), String> {
        self.exporter.use_gpu(&gpu.engine).map_err(|error| error.to_string())?;
        let _ = self.gpu.set(gpu);
        Ok(())
    }

    /// The reason why there is no GPU, if there is none.
    pub(super) fn memory_why(&self) -> Option<&str> {
        let why = match &self.no_gpu {
            NoGpu::NotYet => "no frames in CUDA memory have come",
            NoGpu::Never(why) => why,
        };
        self.gpu.get().is_none().then_some(why)
    }

    /// The GPU that frames are currently shared on, if they are.
    pub(super) fn on_gpu(&self) -> Option<&Gpu> {
        self.gpu.get().filter(|_| !self.in_host.load(Relaxed))
    }

    /// Applies new caps: the following frames are shared in host memory, or on the GPU if there is
    /// one.
    pub(super) fn use_host_memory(&self, yes: bool) {
        self.end_span();
        if self.gpu.get().is_some() {
            self.in_host.store(yes, Relaxed);
            self.exporter.use_host_memory(yes);
        }
    }

    /// Retires memory of upstream that was shared in place so far.
    pub(super) fn end_span(&self) {
        self.surfaces.end_span(&self.exporter);
        self.retire_dma_bufs();
    }

    /// Finds the slot of a buffer, or copies its frame into one; raw video has an `info`.
    pub(super) fn place(
        &self,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        match self.on_gpu() {
            Some(gpu) => self.place_on(gpu, buffer, info, None),
            None => self.place_in_host(buffer, info, None),
        }
    }

    /// Places a frame in host memory, or in upstream's unless there is a `reason` to copy it from
    /// there.
    pub(super) fn place_in_host(
        &self,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
        reason: Option<CopyReason>,
    ) -> Result<Placed, PlaceError> {
        match self.slot_of(buffer) {
            Ok((slot, offset)) => {
                let placed = whole_in(slot, offset, buffer, info, Path::Pool)?;
                if self.must_be_compact(&placed, info) {
                    return self.copy_for(CopyReason::PaddedRows, buffer, info);
                }
                Ok(placed)
            }
            Err(CopyReason::ForeignMemory) => self.place_foreign(buffer, info, reason),
            Err(reason) => self.copy_for(reason, buffer, info),
        }
    }

    /// Returns whether the rows of a frame are padded and must not be: upstream may not have heard
    /// of the change yet, or ignores it.
    pub(super) fn must_be_compact(&self, placed: &Placed, info: Option<&gst_video::VideoInfo>) -> bool {
        self.is_compact() && info.is_some_and(|info| !placed.is_compact(info))
    }

    pub(super) fn copy_for(
        &self,
        reason: CopyReason,
        buffer: &gst::BufferRef,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        if self.has_device_layout() {
            return Err(PlaceError::NotCopyable(reason));
        }
        let placed = self.copy(buffer, info)?;
        self.count_copy(reason, placed.size);
        Ok(placed)
    }

    /// Returns whether frames in host memory have the default layout of their format.
    pub(super) fn is_compact(&self) -> bool {
        self.is_compact.load(Relaxed)
    }

    /// Uses the default layout for the following frames, or upstream's; returns whether that is a
    /// change.
    pub(super) fn set_compact(&self, yes: bool) -> bool {
        let yes = yes && !self.has_device_layout();
        self.is_compact.swap(yes, Relaxed) != yes
    }

    pub(super) fn has_device_layout(&self) -> bool {
        self.has_device_layout.load(Relaxed)
    }

    /// Applies new caps: devices alone know the layout of the following frames, or the CPU as well.
    pub(super) fn set_device_layout(&self, yes: bool) {
        if self.has_device_layout.swap(yes, Relaxed) != yes {
            self.exporter.require_dma_bufs(yes);
        }
    }

    pub(super) fn count_copy(&self, reason: CopyReason, bytes: u64) {
        if self.copy_stats.count(&self.exporter, reason, bytes) {
            gst::info!(CAT, "frames are copied: {}", reason.name());
        }
    }

    /// Returns the slot of a buffer, and its offset in it; or the reason why its frame must be
    /// copied.
    fn slot_of(&self, buffer: &gst::BufferRef) -> Result<(Slot, u64), CopyReason> {
        if buffer.n_memory() > 1 {
            return Err(CopyReason::SeveralMemories);
        }
        if buffer.n_memory() == 0 {
            return Err(CopyReason::ForeignMemory);
        }
        let memory = buffer.peek_memory(0);
        let slot = match slot_memory::origin(memory) {
            None => return Err(CopyReason::ForeignMemory),
            Some(slot_memory::Origin::Private) => return Err(CopyReason::NoFreeSlot),
            Some(slot_memory::Origin::Slot(slot)) if !slot.belongs_to(&self.exporter) => {
                return Err(CopyReason::OtherStream);
            }
            Some(slot_memory::Origin::Slot(slot)) => slot,
        };
        // By the address of the bytes: the offset of a sub-memory is defined by its allocator.
        let map = memory.map_readable().map_err(|_| CopyReason::ForeignMemory)?;
        let start = slot.as_ptr().ok_or(CopyReason::ForeignMemory)?.as_ptr() as u64;
        let offset = (map.as_ptr() as u64).checked_sub(start);
        let end = offset.and_then(|offset| offset.checked_add(map.size() as u64));
        match offset {
            Some(offset) if end.is_some_and(|end| end <= slot.size()) => Ok((slot.clone(), offset)),
            _ => Err(CopyReason::ForeignMemory),
        }
    }

    /// Copies the frame into a slot of its own, in the default layout: everything in memory if that
    /// is more than the caps say, since a crop meta counts from there.
    fn copy(
        &self,
        buffer: &gst::BufferRef,
        info: Option<&gst_video::VideoInfo>,
    ) -> Result<Placed, PlaceError> {
        let whole = info.and_then(|info| whole(buffer, info));
        let info = whole.as_ref().or(info);
        let size = info.map_or(buffer.size(), |info| info.size());
        let slot = self.free_slot(slot_size(size, info.is_some()))?;
        let bad = |what: &str| {
            PlaceError::BadBuffer(format!("a buffer of {} bytes, which {what} {size} bytes", buffer.size()))
        };
        let memory = slot_memory::wrap(slot.clone(), size, 0, size)
            .ok_or_else(|| bad("does not fit into a slot of"))?;
        let mut target = gst::Buffer::new();
        let target = target.get_mut().ok_or_else(|| bad("cannot be copied to a slot of"))?;
        target.append_memory(memory);
        match info {
            Some(info) => copy_picture(buffer, target, info)?,
            None => {
                let mut to = target.map_writable().map_err(|_| bad("cannot be copied to a slot of"))?;
                buffer.copy_to_slice(0, &mut to).map_err(|_| bad("cannot be read into a slot of"))?;
            }
        }
        Ok(Placed::new(slot, size as u64, Path::Copied, info))
    }

    /// Returns a slot to copy into. Unused buffers in upstream's pool make room for it.
    pub(super) fn free_slot(&self, size: u64) -> Result<Slot, PlaceError> {
        let acquire = || self.exporter.acquire(size, Purpose::Copy, Wait::No);
        let slot = acquire().or_else(|error| {
            self.slots.trim();
            self.exporter.reclaim();
            // After an allocation failure there is no second attempt.
            if matches!(error, AcquireError::Exhausted { .. }) { acquire() } else { Err(error) }
        });
        slot.map_err(|error| match error {
            AcquireError::Memory(_) | AcquireError::Exhausted { .. } => PlaceError::NoneFree(size, error),
            error => PlaceError::NoSlot(error),
        })
    }

    /// Publishes a placed frame to all readers; waits for the credit of lossless ones.
    pub(super) fn publish(
        &self,
        placed: &Placed,
        buffer: &gst::Buffer,
        info: Option<&gst_video::VideoInfo>,
        Place { times, arrived, is_discont, late_after, unit }: Place,
    ) -> Result<Sequence, PublishError> {
        let moved = matches!(placed.path, Path::Copied | Path::Uploaded);
        let discont = if is_discont { gst::BufferFlags::DISCONT } else { gst::BufferFlags::empty() };
        let counter = |value: u64| (value != gst::ffi::GST_BUFFER_OFFSET_NONE).then_some(value);
        let frame = Frame {
            written: match (self.gpu.get(), placed.path) {
                _ if placed.slot.as_ptr().is_some() => Written::Cpu,
                (Some(gpu), Path::InPlace) => gpu.written_somewhere(),
                (Some(gpu), _) => gpu.written_here(),
                (None, _) => Written::Somewhere,
            },
            slot: &placed.slot,
            offset: placed.offset,
            size: placed.size,
            pts: times.pts,
            dts: times.dts,
            duration: times.duration,
            media_offset: counter(buffer.offset()),
            media_offset_end: counter(buffer.offset_end()),
            flags: flags::to_word(all_flags(buffer) | discont) | flags::of_crop(buffer),
            planes: placed.planes(),
            metadata: &meta::wire::serialize(buffer, info, moved, &self.dropped_metas),
            arrived,
            late_after,
            unit,
            keep: match placed.path {
                Path::Pool => Some(Box::new(buffer.clone())),
                Path::InPlace => Some(Box::new(self.surfaces.hold(buffer))),
                Path::Copied | Path::Uploaded => None,
            },
        };
        let sequence = self.exporter.publish(frame, Wait::Forever)?;
        self.copy_stats.published(placed.path);
        Ok(sequence)
    }
}

/// A frame in a slot that the CPU can read, with all its planes.
pub(super) fn whole_in(
    slot: Slot,
    offset: u64,
    buffer: &gst::BufferRef,
    info: Option<&gst_video::VideoInfo>,
    path: Path,
) -> Result<Placed, PlaceError> {
    let mut placed = Placed::new(slot, buffer.size() as u64, path, info).at(offset);
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
