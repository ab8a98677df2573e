// SPDX-License-Identifier: MIT OR Apache-2.0

//! Video in frames: the format of a frame, and its planes.

use super::lease::Frame;
use crate::{
    fence::FenceError,
    memory::Address,
    sys::load_into,
    video::{CROPPED, PlaneLayout, VideoError, VideoFormat},
};
use frameshare_cuda::stream::Stream;
use std::{
    ops::Deref,
    sync::{Arc, atomic::AtomicU8},
};

impl Frame {
    /// The video format of the frame: pixel format, size, rate, colors.
    ///
    /// # Errors
    /// [`VideoError`] if the stream is not raw video of a known format.
    pub fn format(&self) -> Result<&VideoFormat, VideoError> {
        self.origin().video.as_ref().map_err(Clone::clone)
    }

    /// Returns plane `index` of the image, counted from 0: where the exporter has placed it, or
    /// where GStreamer's default layout puts it. All its rows are inside the frame.
    ///
    /// ```
    /// # use frameshare::{reader::Frame, video::VideoError};
    /// fn luma(frame: &Frame) -> Result<(), VideoError> {
    ///     let plane = frame.plane(0)?;
    ///     println!("{}x{}, {} bytes a row", plane.width, plane.height, plane.stride);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// [`VideoError`] as [`Frame::format`]; for a plane that the format does not have or that is
    /// not inside the frame; and for a cropped frame.
    pub fn plane(&self, index: usize) -> Result<FramePlane<'_>, VideoError> {
        if self.descriptor().flags & CROPPED != 0 {
            return Err(VideoError::Cropped);
        }
        let planes = self.descriptor().used_planes();
        let layout = self.format()?.plane(index, planes, self.descriptor().size)?;
        Ok(FramePlane { frame: self, index, layout })
    }
}

/// A plane of a frame. Its layout is reached by dereferencing: `plane.width`, `plane.stride`.
#[derive(Clone, Debug)]
pub struct FramePlane<'a> {
    frame: &'a Frame,
    index: usize,
    layout: PlaneLayout,
}

impl Deref for FramePlane<'_> {
    type Target = PlaneLayout;

    fn deref(&self) -> &PlaneLayout {
        &self.layout
    }
}

impl<'a> FramePlane<'a> {
    /// The place of the plane in the frame.
    pub fn layout(&self) -> &PlaneLayout {
        &self.layout
    }

    /// The CUDA device pointer of the first row, for work on any stream; `None` for host memory.
    /// Waits and releases are those of [`Frame::address`]; [`FramePlane::device_pointer_on`] is
    /// cheaper.
    pub fn device_pointer(&self) -> Option<u64> {
        self.pointer(self.frame.address())
    }

    /// The CUDA device pointer of the first row, for work on `stream` only, which waits for the
    /// frame as by [`Frame::address_on`]; `None` for host memory.
    ///
    /// # Errors
    /// As [`Frame::address_on`].
    pub fn device_pointer_on(&self, stream: &Arc<Stream>) -> Result<Option<u64>, FenceError> {
        self.frame.address_on(stream).map(|start| self.pointer(start))
    }

    fn pointer(&self, start: Address) -> Option<u64> {
        match start {
            Address::Device(start) => Some(start + self.layout.offset as u64),
            Address::Host(_) => None,
        }
    }

    /// The bytes from the first to the last in memory, to be loaded one by one, which is sound
    /// whatever the exporter writes. Empty for GPU memory.
    pub fn bytes(&self) -> &'a [AtomicU8] {
        self.frame.bytes().get(self.layout.range.clone()).unwrap_or_default()
    }

    /// The same bytes as a plain slice, if the exporter is trusted: see [`Frame::slice`].
    pub fn slice(&self) -> Option<&'a [u8]> {
        self.frame.slice()?.get(self.layout.range.clone())
    }

    /// Returns the bytes of a row, from the top, without padding; empty for GPU memory and outside
    /// the plane. Of a plane of tiles it is a row of tiles.
    pub fn row(&self, row: usize) -> &'a [AtomicU8] {
        self.layout.range_of(row).and_then(|range| self.bytes().get(range)).unwrap_or_default()
    }

    /// Returns a row as a plain slice, as [`FramePlane::row`]; `None` if the exporter is not
    /// trusted.
    pub fn row_slice(&self, row: usize) -> Option<&'a [u8]> {
        self.slice()?.get(self.layout.range_of(row)?)
    }

    /// Copies the rows, from the top, each `stride` bytes behind the one before.
    ///
    /// # Errors
    /// [`VideoError::NoRows`] for GPU memory and tiles; [`VideoError::Target`] if the rows do not
    /// fit into `target`.
    pub fn copy_to(&self, target: &mut [u8], stride: usize) -> Result<(), VideoError> {
        let no_rows = |what| Err(VideoError::NoRows { index: self.index, what });
        if self.frame.as_ptr().is_none() {
            return no_rows("in GPU memory");
        }
        if self.tile.is_some() {
            return no_rows("made of tiles");
        }
        let PlaneLayout { height: rows, row_bytes, .. } = self.layout;
        let end = (rows as usize - 1).checked_mul(stride).and_then(|last| last.checked_add(row_bytes));
        if stride < row_bytes || end.is_none_or(|end| end > target.len()) {
            return Err(VideoError::Target { len: target.len(), rows, row_bytes, stride });
        }
        for (index, to) in target.chunks_mut(stride).take(rows as usize).enumerate() {
            let to = &mut to[..row_bytes];
            match self.row_slice(index) {
                Some(row) => to.copy_from_slice(row),
                None => load_into(self.row(index), to),
            }
        }
        Ok(())
    }
}
