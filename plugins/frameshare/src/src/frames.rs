// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conversion of frames to buffers: in place if possible, otherwise as a copy.

use super::{
    copy_pool::CopyPool,
    cuda::{self, Cuda, CudaError},
    layout::BadLayout,
    leased_memory::LeasedMemory,
    picture::Picture,
    way::Way,
};
use crate::{
    drm::DrmFrames,
    ffi::used_on::used_on,
    flags,
    meta::{
        FrameshareMeta,
        budget::{Budget, OverBudget},
        wire::{self, MetaError, Metas},
    },
    times::{Timestamps, nearest},
};
use frameshare::{
    Descriptor,
    reader::{Frame, ReaderCopy},
};
use gst_video::{VideoFrameRef, VideoInfo};
use std::sync::{
    Arc,
    atomic::{AtomicU32, AtomicU64},
};

/// Offset of a buffer if it is unknown (`GST_BUFFER_OFFSET_NONE`).
const NO_OFFSET: u64 = u64::MAX;

/// Format of a stream's frames.
#[derive(Clone, Debug, Default)]
pub(super) struct Shape {
    /// Set for raw video.
    video: Option<VideoInfo>,
    /// Devices alone know the layout: the CPU cannot copy the frames.
    has_device_layout: bool,
}

/// Downstream's answer to the allocation query.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Downstream {
    /// It supports GstVideoMeta.
    pub video_meta: bool,
    /// It supports GstVideoCropMeta.
    pub crop_meta: bool,
    /// Number of buffers that it keeps.
    pub keeps: u32,
}

/// Error of a frame that cannot be pushed downstream.
#[derive(Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error(transparent)]
    Layout(#[from] BadLayout),
    #[error("copying the frame failed: {0}")]
    Copy(#[from] glib::BoolError),
    #[error(transparent)]
    Cuda(#[from] CudaError),
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    #[error("the frame is in CUDA memory, but the reader did not negotiate memory:CUDAMemory")]
    Unasked,
    #[error("the frame is not in a dma-buf, as its caps say")]
    NoDmaBuf,
}

/// Inputs of the conversion besides the frame.
pub(super) struct Context<'a> {
    pub shape: &'a Shape,
    pub downstream: Downstream,
    pub time: Timestamps,
    /// Encoded frames that were kept for readers like this one are shown now, as those of raw video
    /// are, not when they were due.
    pub shows_kept: bool,
    /// Time in ns by which the exporter's frames come later than their times.
    pub latency: u64,
    /// Number of frames that the reader lost or the source skipped before it.
    pub lost_before: u64,
    /// Downstream already holds every other frame of the credit.
    pub is_last_credit: bool,
    pub held: &'a Arc<AtomicU32>,
    /// Counts the copies that downstream makes.
    pub copies: &'a Arc<AtomicU64>,
    pub copy_pool: &'a mut CopyPool,
    /// CUDA context and stream for frames in GPU memory.
    pub cuda: Option<&'a mut Cuda>,
    /// The exporter runs as this process's user or root.
    pub is_trusted: bool,
    /// Metas that stay behind.
    pub dropped: &'a wire::Dropped,
    /// Memory limit of metadata.
    pub budget: &'a Budget,
}

impl Shape {
    pub fn of(caps: &gst::CapsRef) -> Self {
        let drm = DrmFrames::of(caps);
        let video = crate::pool::video_info(drm.as_ref().map_or(caps, |frames| &frames.picture));
        let video = video.filter(|info| info.format() != gst_video::VideoFormat::Encoded);
        Self { video, has_device_layout: drm.is_some_and(|frames| frames.has_device_layout) }
    }

    pub fn is_raw_video(&self) -> bool {
        self.video.is_some()
    }

    /// Returns the duration of one frame, if the caps name a rate.
    pub fn frame_duration(&self) -> Option<gst::ClockTime> {
        let fps = self.video.as_ref()?.field_rate();
        let (frames, seconds) = (u64::try_from(fps.numer()).ok()?, u64::try_from(fps.denom()).ok()?);
        let nanoseconds = seconds.checked_mul(1_000_000_000)?.checked_div(frames)?;
        Some(gst::ClockTime::from_nseconds(nanoseconds))
    }
}

/// Converts a frame to a buffer; returns the delivery mode as well.
pub(super) fn to_buffer(
    mut frame: Frame,
    mut context: Context<'_>,
) -> Result<(gst::Buffer, Way), FrameError> {
    let descriptor = frame.descriptor().clone();
    // The serialized metadata is freed once the metas are built: the frame may be held for long.
    let metas = match wire::parse(&frame.take_metadata(), context.budget) {
        Ok(metas) => metas,
        Err(MetaError::OverBudget(error)) => return Err(error.into()),
        Err(error) => {
            gst::warning!(super::log::CAT, "Dropping the metas of frame {}: {error}", descriptor.sequence);
            Metas::default()
        }
    };
    let on_gpu = frame.is_on_gpu();
    let meta = crate::meta::FrameInfo {
        session: frame.session(),
        sequence: descriptor.sequence.0,
        lost_before: context.lost_before,
        published: descriptor.published,
        used_on: on_gpu.then_some(used_on::<LeasedMemory>),
        repeats: 0,
    };
    let mut crop = metas.crop();
    let has_device_layout = context.shape.has_device_layout;
    let mut picture = match &context.shape.video {
        // The exporter does not know where the planes are.
        Some(_) if has_device_layout && descriptor.used_planes().is_empty() => None,
        Some(info) => Some(Picture::of(&descriptor, &metas, info, frame.len())?),
        None => None,
    };
    let shows_kept = context.shape.is_raw_video() || context.shows_kept;
    let shown_now = frame.is_kept() && shows_kept && context.time.is_live();
    let lease = LeasedMemory::new(frame, context.held, context.copies);
    // In CUDA memory every element finds the planes by GstVideoMeta or by the memory itself.
    let shows_crop = (context.downstream.video_meta || on_gpu) && context.downstream.crop_meta;
    if let (Some(picture), Some((x, y)), Some(info)) = (&mut picture, crop, &context.shape.video)
        && !shows_crop
        && !has_device_layout
        && picture.crop(x, y, info)
    {
        crop = None;
    }

    let (mut buffer, way) = if on_gpu {
        let cuda = context.cuda.ok_or(FrameError::Unasked)?;
        cuda::to_buffer(cuda, lease, picture, context.is_last_credit)?
    } else if has_device_layout {
        (in_dma_buf(lease, picture.as_ref())?, Way::InPlace)
    } else {
        in_system_memory(lease, picture.as_ref(), &mut context)?
    };

    let buffer_ref = buffer.make_mut();
    if let Err(error) = metas.add_to(buffer_ref, crop.is_some(), context.is_trusted, context.dropped) {
        gst::warning!(super::log::CAT, "Dropping some metas of frame {}: {error}", descriptor.sequence);
    }
    FrameshareMeta::add(buffer_ref, meta);
    stamp(buffer_ref, &descriptor, context.time);
    if shown_now {
        // As a frame that is due now.
        let captured = frameshare::monotonic_ns().saturating_sub(context.latency);
        buffer_ref.set_pts(Some(nearest(context.time.signed(captured))));
        buffer_ref.set_flags(gst::BufferFlags::DISCONT);
    }
    Ok((buffer, way))
}

fn in_system_memory(
    lease: LeasedMemory,
    picture: Option<&Picture<'_>>,
    context: &mut Context<'_>,
) -> Result<(gst::Buffer, Way), FrameError> {
    if let Some(picture) = picture.filter(|picture| !picture.is_default && !context.downstream.video_meta) {
        lease.frame().count_copy(ReaderCopy::Layout);
        let copy = copy_picture(lease, picture, context.shape, context.copy_pool)?;
        return Ok((copy, Way::CopiedForLayout));
    }
    let (mut buffer, way) = if context.is_last_credit {
        lease.frame().count_copy(ReaderCopy::Credit);
        (copy_bytes(&lease, context.copy_pool)?, Way::CopiedForCredit)
    } else {
        let mut buffer = gst::Buffer::new();
        buffer.make_mut().append_memory(lease.into_memory()?);
        (buffer, Way::InPlace)
    };
    if let Some(picture) = picture.filter(|picture| picture.needs_meta()) {
        picture.add_meta(buffer.make_mut())?;
    }
    Ok((buffer, way))
}

/// Returns a buffer whose layout devices alone know. It takes the last credit, too: without a copy
/// no further frame comes until downstream releases one.
fn in_dma_buf(lease: LeasedMemory, picture: Option<&Picture<'_>>) -> Result<gst::Buffer, FrameError> {
    if lease.frame().dma_buf().is_none() {
        return Err(FrameError::NoDmaBuf);
    }
    let mut buffer = gst::Buffer::new();
    buffer.make_mut().append_memory(lease.into_memory()?);
    if let Some(picture) = picture {
        picture.add_meta(buffer.make_mut())?;
    }
    Ok(buffer)
}

/// Sets the frame's times, counters and flags on a buffer.
fn stamp(buffer: &mut gst::BufferRef, descriptor: &Descriptor, time: Timestamps) {
    buffer.set_pts(descriptor.pts.and_then(|pts| time.of(pts)));
    buffer.set_dts(descriptor.dts.and_then(|dts| time.of(dts)));
    buffer.set_duration(descriptor.duration.and_then(|duration| time.duration(duration)));
    buffer.set_offset(descriptor.media_offset.unwrap_or(NO_OFFSET));
    buffer.set_offset_end(descriptor.media_offset_end.unwrap_or(NO_OFFSET));
    let keep = buffer.flags();
    buffer.set_flags(keep | flags::from_word(descriptor.flags));
}

/// Copies the bytes of a frame to private memory.
fn copy_bytes(lease: &LeasedMemory, copy_pool: &mut CopyPool) -> Result<gst::Buffer, glib::BoolError> {
    let bytes = lease.as_ref();
    if bytes.len() != lease.frame().len() {
        return Err(glib::bool_error!("the driver of its dma-buf does not let the CPU read it"));
    }
    let mut buffer = copy_pool.acquire(bytes.len())?;
    buffer
        .make_mut()
        .copy_from_slice(0, bytes)
        .map_err(|copied| glib::bool_error!("only {copied} of {} bytes could be written", bytes.len()))?;
    Ok(buffer)
}

/// Copies the image of a frame to private memory, in the default layout of its format.
fn copy_picture(
    lease: LeasedMemory,
    picture: &Picture<'_>,
    shape: &Shape,
    copy_pool: &mut CopyPool,
) -> Result<gst::Buffer, glib::BoolError> {
    let info = shape.video.as_ref().ok_or_else(|| glib::bool_error!("no raw video"))?;
    let mut source = gst::Buffer::new();
    source.make_mut().append_memory(lease.into_memory()?);
    picture.add_meta(source.make_mut())?;
    let mut copy = copy_pool.acquire(info.size())?;
    {
        let source = VideoFrameRef::from_buffer_ref_readable(&source, info)?;
        let mut copy = VideoFrameRef::from_buffer_ref_writable(copy.make_mut(), info)?;
        crate::rows::copy_picture(&source, &mut copy)?;
    }
    Ok(copy)
}
