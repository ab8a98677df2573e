// SPDX-License-Identifier: MIT OR Apache-2.0

//! A frame ready to be published: its slot, and its planes.

use super::copy_stats::{CopyReason, Path};
use crate::rows::rows;
use frameshare::{
    Plane,
    exporter::{AcquireError, Slot},
};

/// Size in bytes of the smallest slot, for streams whose buffers have no fixed size.
const SMALLEST_SLOT: u64 = 4096;

/// A frame in a slot that waits to be published.
pub(super) struct Placed {
    pub(super) slot: Slot,
    pub(super) offset: u64,
    pub(super) size: u64,
    planes: [Plane; gst_video::VIDEO_MAX_PLANES],
    plane_count: usize,
    pub(super) path: Path,
}

/// The reason why a frame cannot be placed in a slot.
#[derive(Debug)]
pub(super) enum PlaceError {
    /// No slot is available.
    NoSlot(AcquireError),
    /// No free slot has this number of bytes, and none can be added. An existing one may become
    /// free.
    NoneFree(u64, AcquireError),
    /// The buffer contradicts its caps, as the text says.
    BadBuffer(String),
    /// The CPU cannot copy the frame, which cannot be shared in place for this reason.
    NotCopyable(CopyReason),
    /// The property asks for sharing in place, which is impossible for this reason.
    NotInPlace(CopyReason),
    /// The GPU has failed.
    Gpu(frameshare_cuda::Error),
}

impl From<frameshare_cuda::Error> for PlaceError {
    fn from(error: frameshare_cuda::Error) -> Self {
        Self::Gpu(error)
    }
}

impl Placed {
    /// A frame at the start of a slot.
    pub(super) fn new(slot: Slot, size: u64, path: Path, info: Option<&gst_video::VideoInfo>) -> Self {
        let mut placed = Self { slot, offset: 0, size, planes: Default::default(), plane_count: 0, path };
        if let Some(info) = info {
            placed.set_planes(info.offset(), info.stride());
        }
        placed
    }

    /// Moves the frame further into the slot.
    pub(super) fn at(self, offset: u64) -> Self {
        Self { offset, ..self }
    }

    /// Refuses planes that do not lie in the frame.
    pub(super) fn check(&self, info: &gst_video::VideoInfo) -> Result<(), PlaceError> {
        let planes = self.planes();
        if holds(self.size, planes, info) {
            return Ok(());
        }
        let size = self.size;
        Err(PlaceError::BadBuffer(format!(
            "a buffer of {size} bytes, which does not hold a frame of its caps with planes {planes:?}"
        )))
    }

    /// The layout of its planes.
    pub(super) fn planes(&self) -> &[Plane] {
        &self.planes[..self.plane_count]
    }

    /// Returns whether its planes are where the caps alone put them.
    pub(super) fn is_compact(&self, info: &gst_video::VideoInfo) -> bool {
        let default = info.offset().iter().zip(info.stride());
        let is_default = |(plane, (offset, stride)): (&Plane, (&usize, &i32))| {
            (plane.offset, plane.stride) == (*offset as u64, *stride)
        };
        self.planes().iter().zip(default).all(is_default)
    }

    pub(super) fn set_planes(&mut self, offsets: &[usize], strides: &[i32]) {
        self.plane_count = offsets.len().min(self.planes.len());
        for (plane, (offset, stride)) in self.planes.iter_mut().zip(offsets.iter().zip(strides)) {
            *plane = Plane { offset: *offset as u64, stride: *stride };
        }
    }
}

/// A buffer that was placed in `prepare`, and its frame, or the lack of memory for it.
pub(super) struct Prepared {
    buffer: gst::Buffer,
    placed: Result<Placed, PlaceError>,
}

impl Prepared {
    /// Keeps the result of an attempt to place a buffer. Other failures than a lack of memory are
    /// repeated, and reported, when the frame is due.
    pub(super) fn new(buffer: &gst::Buffer, tried: Result<Placed, PlaceError>) -> Option<Self> {
        let is_kept = matches!(tried, Ok(_) | Err(PlaceError::NoneFree(..)));
        is_kept.then(|| Self { buffer: buffer.clone(), placed: tried })
    }

    /// Returns whether it is of this buffer.
    pub(super) fn is_of(&self, buffer: &gst::Buffer) -> bool {
        self.buffer.as_ptr() == buffer.as_ptr()
    }

    /// Returns the frame of this buffer, if it is of it.
    pub(super) fn into_placed(self, buffer: &gst::Buffer) -> Option<Result<Placed, PlaceError>> {
        self.is_of(buffer).then_some(self.placed)
    }
}

/// The layout of a frame in memory that is larger than its caps say.
pub(super) fn whole(buffer: &gst::BufferRef, info: &gst_video::VideoInfo) -> Option<gst_video::VideoInfo> {
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

/// Copies a frame by the CPU.
pub(super) fn copy_picture(
    from: &gst::BufferRef,
    to: &mut gst::BufferRef,
    info: &gst_video::VideoInfo,
) -> Result<(), PlaceError> {
    let size = info.size();
    let bad = |what: &str| {
        PlaceError::BadBuffer(format!("a buffer of {} bytes, which {what} {size} bytes", from.size()))
    };
    let from = gst_video::VideoFrameRef::from_buffer_ref_readable(from, info)
        .map_err(|_| bad("does not hold a frame of its caps, of"))?;
    let mut to = gst_video::VideoFrameRef::from_buffer_ref_writable(to, info)
        .map_err(|_| bad("cannot be copied to a slot of"))?;
    crate::rows::copy_picture(&from, &mut to)
        .map_err(|_| bad("has a video meta that does not go with its caps, of a frame of"))
}

/// Returns a slot size with room for growth, so that growing buffers without a fixed size do not
/// need a new generation each time.
pub(super) fn slot_size(size: usize, is_fixed: bool) -> u64 {
    if is_fixed { size as u64 } else { (size as u64).next_power_of_two().max(SMALLEST_SLOT) }
}

/// Returns whether every row of every plane starts inside `size` bytes, and the format has this
/// number of planes.
fn holds(size: u64, planes: &[Plane], info: &gst_video::VideoInfo) -> bool {
    let format = info.format_info();
    if planes.len() != info.n_planes() as usize {
        return false;
    }
    planes.iter().enumerate().all(|(index, plane)| {
        // The stride of a tiled plane is not a number of bytes.
        let rows = match format.is_tiled() {
            true => 1,
            false => rows(info, index).0,
        };
        let last = i64::try_from(rows).ok().and_then(|rows| i64::from(plane.stride).checked_mul(rows - 1));
        let last = last.and_then(|last| i64::try_from(plane.offset).ok()?.checked_add(last));
        plane.offset <= size && last.is_some_and(|last| (0..=size as i64).contains(&last))
    })
}
