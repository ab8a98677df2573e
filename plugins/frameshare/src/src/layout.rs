// SPDX-License-Identifier: MIT OR Apache-2.0

//! Plane layout of a frame, checked against the size of the frame.
//!
//! GStreamer reads rows at the offsets of a GstVideoMeta without checking the size of the buffer.
//! The offsets come from another process, so every row is bounds-checked first.

use crate::rows::rows;
use frameshare::{
    Plane,
    video::{Interlacing, VideoFormat},
};
use gst_video::{VideoInfo, VideoInterlaceMode};

/// Offsets and strides of the planes, as in a GstVideoMeta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    offsets: [usize; gst_video::VIDEO_MAX_PLANES],
    strides: [i32; gst_video::VIDEO_MAX_PLANES],
    planes: usize,
}

/// Error of a frame with rows outside its memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{size} bytes do not hold {what} of {format} at {width}x{height}")]
pub(super) struct BadLayout {
    size: usize,
    what: String,
    format: gst_video::VideoFormat,
    width: u32,
    height: u32,
}

impl Layout {
    /// Returns the layout of a descriptor for a frame of `size` bytes; without planes, the format's
    /// default layout.
    pub fn of(planes: &[Plane], info: &VideoInfo, size: usize) -> Result<Self, BadLayout> {
        let bad = |what: String| BadLayout {
            size,
            what,
            format: info.format(),
            width: info.width(),
            height: info.height(),
        };
        if planes.is_empty() {
            return if info.size() <= size {
                Ok(Self::default_of(info))
            } else {
                Err(bad("all rows".into()))
            };
        }
        let expected = info.n_planes() as usize;
        if planes.len() != expected {
            return Err(bad(format!("{} planes", planes.len())));
        }
        let mut layout = Self { offsets: Default::default(), strides: Default::default(), planes: expected };
        for (index, plane) in planes.iter().enumerate() {
            let Some(offset) = usize::try_from(plane.offset)
                .ok()
                .filter(|offset| fits(info, index, *offset, plane.stride, size))
            else {
                return Err(bad(format!("plane {index} at {} with stride {}", plane.offset, plane.stride)));
            };
            layout.offsets[index] = offset;
            layout.strides[index] = plane.stride;
        }
        Ok(layout)
    }

    /// Returns the default layout of a format.
    pub fn default_of(info: &VideoInfo) -> Self {
        let mut layout =
            Self { offsets: Default::default(), strides: Default::default(), planes: info.offset().len() };
        layout.offsets[..layout.planes].copy_from_slice(info.offset());
        layout.strides[..layout.planes].copy_from_slice(info.stride());
        layout
    }

    /// Returns the offset of each plane.
    pub fn offsets(&self) -> &[usize] {
        &self.offsets[..self.planes]
    }

    /// Returns the stride of each plane.
    pub fn strides(&self) -> &[i32] {
        &self.strides[..self.planes]
    }

    /// Returns the layout relative to `start`; no plane begins before `start`.
    pub fn from(&self, start: usize) -> Self {
        let mut layout = self.clone();
        layout.offsets[..self.planes].iter_mut().for_each(|offset| *offset = offset.saturating_sub(start));
        layout
    }

    /// Returns the layout of the same memory cropped to start at pixel (x, y); none for formats
    /// whose pixel packing does not allow that.
    pub fn starting_at(&self, info: &VideoInfo, x: u32, y: u32) -> Option<Self> {
        let format = info.format_info();
        if format.is_complex() || format.is_tiled() || format.has_palette() {
            return None;
        }
        let mut layout = self.clone();
        for plane in 0..self.planes {
            let component = (0..info.n_components() as u8).find(|c| info.comp_plane(*c) as usize == plane)?;
            let column = i64::from(x >> format.w_sub()[usize::from(component)]);
            let row = i64::from(y >> format.h_sub()[usize::from(component)]);
            let shift =
                row * i64::from(self.strides[plane]) + column * i64::from(info.comp_pstride(component));
            layout.offsets[plane] = self.offsets[plane].checked_add_signed(shift as isize)?;
        }
        Some(layout)
    }
}

/// Returns a format as the engine knows it; none for formats that are newer than its table.
pub(super) fn in_engine(info: &VideoInfo) -> Option<VideoFormat> {
    let mut format = VideoFormat::new(info.format().to_str().parse().ok()?, info.width(), info.height());
    format.interlacing = match info.interlace_mode() {
        VideoInterlaceMode::Progressive => Interlacing::Progressive,
        VideoInterlaceMode::Alternate => Interlacing::Alternate,
        _ => Interlacing::Mixed,
    };
    Some(format)
}

/// Returns whether all rows of a plane at `offset` lie inside `size` bytes, and none overlaps the
/// next one: a small frame could claim an image of any size, whose copy would fill the memory. The
/// engine has the same rule in `frameshare::video`, for formats of its table.
fn fits(info: &VideoInfo, plane: usize, offset: usize, stride: i32, size: usize) -> bool {
    let Some(space) = size.checked_sub(offset) else { return false };
    if info.format_info().is_tiled() {
        return fits_tiles(info, plane, stride, space);
    }
    let (rows, bytes) = rows(info, plane);
    let (row, bytes) = match bytes {
        Some(bytes) => (bytes, bytes),
        // If the format has no byte count per row, GStreamer takes the stride, as an unsigned
        // number, for the length of a row.
        None if stride < 0 => return false,
        None => {
            let default = info.stride()[plane].unsigned_abs() as usize;
            let packed = in_engine(info).and_then(|format| format.plane(plane, &[], u64::MAX).ok());
            (packed.map_or(default, |plane| plane.row_bytes), default)
        }
    };
    if rows > 1 && (stride.unsigned_abs() as usize) < row {
        return false;
    }
    let Some(before_last) = (rows.max(1) - 1).checked_mul(stride.unsigned_abs() as usize) else {
        return false;
    };
    if stride < 0 {
        // The plane starts with the top row of the image, and the other rows lie before it.
        return before_last <= offset && bytes <= space;
    }
    before_last.checked_add(bytes).is_some_and(|end| end <= space)
}

/// Like `fits`, for tiled formats, whose stride counts tiles: columns in the low half, rows in the
/// high half.
fn fits_tiles(info: &VideoInfo, plane: usize, stride: i32, space: usize) -> bool {
    let split = |stride: i32| (stride as usize & 0xffff, stride as usize >> 16 & 0xffff);
    let (columns, rows) = split(stride);
    let (least_columns, least_rows) = split(info.stride()[plane]);
    let tile = info.format_info().tile_info(plane as u32).size() as usize;
    let end = columns.checked_mul(rows).and_then(|tiles| tiles.checked_mul(tile));
    tile > 0 && columns >= least_columns && rows >= least_rows && end.is_some_and(|end| end <= space)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gst_video::VideoFormat;

    fn planes(layout: &Layout) -> Vec<Plane> {
        let pairs = layout.offsets().iter().zip(layout.strides());
        pairs.map(|(offset, stride)| Plane { offset: *offset as u64, stride: *stride }).collect()
    }

    #[test]
    fn default_layouts_fit_exactly_for_every_format() {
        gst::init().unwrap();
        for format in VideoFormat::iter_raw() {
            for (width, height) in [(1, 1), (17, 5), (321, 241), (640, 480)] {
                let Ok(info) = VideoInfo::builder(format, width, height).build() else { continue };
                let layout = Layout::default_of(&info);
                let planes = planes(&layout);
                assert_eq!(Layout::of(&planes, &info, info.size()).as_ref(), Ok(&layout), "{format} {width}");
                assert_eq!(Layout::of(&[], &info, info.size()), Ok(layout), "{format} {width}");
                assert!(Layout::of(&[], &info, info.size() - 1).is_err(), "{format} {width}");
                let last = planes.last().unwrap().offset as usize;
                assert!(Layout::of(&planes, &info, last).is_err(), "{format} {width}");
            }
        }
    }

    #[test]
    fn rows_outside_frame_are_rejected() {
        gst::init().unwrap();
        let info = VideoInfo::builder(VideoFormat::Nv12, 320, 240).build().unwrap();
        let good = [Plane { offset: 0, stride: 512 }, Plane { offset: 512 * 240, stride: 512 }];
        let size = 512 * 359 + 320;
        assert!(Layout::of(&good, &info, size).is_ok());
        assert!(Layout::of(&good, &info, size - 1).is_err());
        for (plane, bad) in [
            (0, Plane { offset: 0, stride: i32::MAX }),
            (0, Plane { offset: u64::MAX, stride: 512 }),
            (0, Plane { offset: 0, stride: -512 }),
            (1, Plane { offset: size as u64, stride: 320 }),
            (1, Plane { offset: 512 * 240, stride: i32::MIN }),
        ] {
            let mut planes = good;
            planes[plane] = bad;
            assert!(Layout::of(&planes, &info, size).is_err(), "{bad:?}");
        }
        assert!(Layout::of(&good[..1], &info, size).is_err());
        let packed = VideoInfo::builder(VideoFormat::V210, 48, 2).build().unwrap();
        let stride = packed.stride()[0];
        let of = |offset, stride| Layout::of(&[Plane { offset, stride }], &packed, packed.size());
        assert!(of(0, stride).is_ok() && of(stride as u64, -stride).is_err());
        let upside_down = [Plane { offset: 512 * 239, stride: -512 }, good[1]];
        assert!(Layout::of(&upside_down, &info, size).is_ok());
    }

    /// A frame of 128 KiB could otherwise claim an image of gigabytes.
    #[test]
    fn overlapping_rows_are_rejected_in_every_format() {
        gst::init().unwrap();
        let mut checked = 0;
        for format in VideoFormat::iter_raw() {
            let Ok(info) = VideoInfo::builder(format, 300, 300).build() else { continue };
            if info.format_info().is_tiled() {
                continue;
            }
            let Some(ours) = in_engine(&info) else { continue };
            for (index, &default) in info.stride().iter().enumerate() {
                let place = ours.plane(index, &[], info.size() as u64).unwrap();
                if place.height == 1 {
                    continue;
                }
                let row = place.row_bytes as i32;
                let of = |stride| {
                    let mut planes = planes(&Layout::default_of(&info));
                    planes[index] = Plane { offset: 1 << 32, stride };
                    Layout::of(&planes, &info, 1 << 40)
                };
                for stride in [0, 1, -1, row - 1, 1 - row] {
                    assert!(of(stride).is_err(), "{format}, plane {index}, {stride}");
                }
                assert!(of(row).is_ok() && of(default).is_ok(), "{format}, plane {index}");
                checked += 1;
            }
        }
        assert!(checked > 200, "{checked} planes");
    }

    #[test]
    fn single_row_may_have_any_stride() {
        gst::init().unwrap();
        let info = VideoInfo::builder(VideoFormat::Rgb, 320, 1).build().unwrap();
        assert!(Layout::of(&[Plane { offset: 0, stride: 1 }], &info, 960).is_ok());
    }

    #[test]
    fn cropped_layout_has_shifted_offsets() {
        gst::init().unwrap();
        let info = VideoInfo::builder(VideoFormat::Nv12, 320, 240).build().unwrap();
        let part = Layout::default_of(&info).starting_at(&info, 16, 8).unwrap();
        assert_eq!(part.offsets(), [8 * 320 + 16, 320 * 240 + 4 * 320 + 16]);
    }
}
