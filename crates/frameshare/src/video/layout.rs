// SPDX-License-Identifier: MIT OR Apache-2.0

//! Places of planes in a frame, checked against its size.

use super::{
    error::VideoError,
    format::VideoFormat,
    shape::{Measure, Tile},
};
use frameshare_protocol::Plane;
use std::ops::Range;

/// The place of a plane in a frame. Every row of it is inside the frame.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PlaneLayout {
    /// Columns of pixels; 256 colors for a palette.
    pub width: u32,
    /// Rows of pixels.
    pub height: u32,
    /// Bytes from the start of the frame to the first row.
    pub offset: usize,
    /// Bytes from one row to the next; negative for bottom-up images. For tiles, the bytes of a
    /// row of tiles.
    pub stride: isize,
    /// Bytes of a row; for tiles, as `stride`.
    pub row_bytes: usize,
    /// The tiles that the plane consists of: its bytes are no rows of pixels then.
    pub tile: Option<Tile>,
    /// The bytes of the plane in the frame.
    pub range: Range<usize>,
}

impl PlaneLayout {
    /// Returns the bytes of a row, from the top, counted from the start of `range`; `None` outside
    /// the plane. Of a plane of tiles it is a row of tiles.
    pub fn range_of(&self, row: usize) -> Option<Range<usize>> {
        let rows = match self.tile {
            Some(_) => self.range.len().checked_div(self.row_bytes)?,
            None => self.height as usize,
        };
        let distance = isize::try_from(row).ok().filter(|_| row < rows)?.checked_mul(self.stride)?;
        let start = self.offset.checked_add_signed(distance)?.checked_sub(self.range.start)?;
        Some(start..start.checked_add(self.row_bytes)?)
    }
}

impl VideoFormat {
    /// Returns the place of plane `index` in a frame of `size` bytes: that in `planes`, the entries
    /// of its descriptor, or GStreamer's default if there are none.
    ///
    /// # Errors
    /// [`VideoError`] for a plane that the format does not have, for rows outside the frame, and
    /// for rows that overlap.
    pub fn plane(&self, index: usize, planes: &[Plane], size: u64) -> Result<PlaneLayout, VideoError> {
        let measure = self.measure(index)?;
        let plane = match planes.get(index) {
            _ if planes.is_empty() => self.default_plane(index, &measure)?,
            Some(plane) if planes.len() == self.pixels.plane_count() => *plane,
            _ => {
                let (found, expected) = (planes.len(), self.pixels.plane_count());
                return Err(VideoError::PlaneCount { found, name: self.pixels.name(), expected });
            }
        };
        let Plane { offset, stride } = plane;
        if has_overlap(&measure, stride) {
            return Err(VideoError::OverlappingRows { index, stride, row_bytes: measure.row_bytes });
        }
        place(&measure, plane, size).ok_or(VideoError::OutOfBounds { index, offset, stride, size })
    }

    /// Returns the first plane whose rows overlap, of the entries of a descriptor. Planes that the
    /// format does not have are passed over.
    pub(crate) fn overlapping_plane(&self, planes: &[Plane]) -> Option<usize> {
        planes.iter().enumerate().position(|(index, plane)| {
            self.measure(index).is_ok_and(|measure| has_overlap(&measure, plane.stride))
        })
    }

    /// Returns the layout of GStreamer for a frame without one of its own.
    ///
    /// # Errors
    /// [`VideoError::TooLarge`] if the size overflows.
    pub fn default_planes(&self) -> Result<Vec<Plane>, VideoError> {
        let planes = 0..self.pixels.plane_count();
        planes.map(|index| self.default_plane(index, &self.measure(index)?)).collect()
    }

    /// Returns the size in bytes of a frame in the default layout.
    ///
    /// # Errors
    /// [`VideoError::TooLarge`] if it overflows.
    pub fn size(&self) -> Result<u64, VideoError> {
        self.offset(self.pixels.plane_count())
    }

    fn default_plane(&self, index: usize, measure: &Measure) -> Result<Plane, VideoError> {
        // `measure` checks that the stride is in range.
        Ok(Plane { offset: self.offset(index)?, stride: measure.stride as i32 })
    }

    /// Returns the bytes of the planes before `index` in the default layout.
    fn offset(&self, index: usize) -> Result<u64, VideoError> {
        let too_large = || VideoError::TooLarge { width: self.width, height: self.height };
        (0..index)
            .try_fold(0_u64, |sum, plane| sum.checked_add(self.measure(plane)?.size).ok_or_else(too_large))
    }
}

/// Returns whether rows of a plane share bytes: a small frame could claim an image of any size, and
/// copies of it would fill the memory of a reader. Tiles never do: their stride counts them.
///
/// Planes may share bytes with each other. There are at most four.
fn has_overlap(measure: &Measure, stride: i32) -> bool {
    measure.tiles.is_none() && measure.height > 1 && u64::from(stride.unsigned_abs()) < measure.row_bytes
}

/// Returns the place of a plane whose rows all lie inside `size` bytes.
fn place(measure: &Measure, plane: Plane, size: u64) -> Option<PlaneLayout> {
    let (stride, row_bytes, rows) = match measure.tiles {
        Some((tile, least_columns, least_rows)) => {
            // The stride counts tiles: columns in the lower half, rows in the upper half.
            let stride = u64::try_from(plane.stride).ok()?;
            let (columns, rows) = (stride & 0xffff, stride >> 16);
            (columns >= least_columns && rows >= least_rows).then_some(())?;
            let row_bytes = columns * tile.bytes() as u64;
            (i64::try_from(row_bytes).ok()?, row_bytes, rows)
        }
        None => (plane.stride.into(), measure.row_bytes, measure.height.into()),
    };
    let others = stride.unsigned_abs().checked_mul(rows.checked_sub(1)?)?;
    let first = if stride < 0 { plane.offset.checked_sub(others)? } else { plane.offset };
    let end = first.checked_add(others)?.checked_add(row_bytes)?;
    (end <= size).then_some(())?;
    let bytes = |number| usize::try_from(number).ok();
    Some(PlaneLayout {
        width: measure.width,
        height: measure.height,
        offset: bytes(plane.offset)?,
        stride: isize::try_from(stride).ok()?,
        row_bytes: bytes(row_bytes)?,
        tile: measure.tiles.map(|(tile, ..)| tile),
        range: bytes(first)?..bytes(end)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::video::PixelFormat;

    fn nv12() -> VideoFormat {
        VideoFormat::new("NV12".parse().unwrap(), 320, 240)
    }

    #[test]
    fn rows_outside_frame_are_rejected() {
        let good = [Plane { offset: 0, stride: 512 }, Plane { offset: 512 * 240, stride: 512 }];
        let size = 512 * 359 + 320;
        let of = |planes: &[Plane], index, size| nv12().plane(index, planes, size);
        assert_eq!(of(&good, 1, size).unwrap().range, 512 * 240..512 * 359 + 320);
        assert!(of(&good, 0, 512 * 239 + 320).is_ok() && of(&good, 1, size - 1).is_err());
        for (index, bad) in [
            (0, Plane { offset: 0, stride: i32::MAX }),
            (0, Plane { offset: u64::MAX, stride: 512 }),
            (0, Plane { offset: u64::MAX, stride: -512 }),
            (0, Plane { offset: 0, stride: -512 }),
            (1, Plane { offset: size, stride: 320 }),
            (1, Plane { offset: 512 * 240, stride: i32::MIN }),
        ] {
            let mut planes = good;
            planes[index] = bad;
            let out = VideoError::OutOfBounds { index, offset: bad.offset, stride: bad.stride, size };
            assert_eq!(of(&planes, index, size), Err(out));
        }
        assert!(matches!(of(&good[..1], 0, size), Err(VideoError::PlaneCount { found: 1, .. })));
        assert!(matches!(of(&good, 2, size), Err(VideoError::NoSuchPlane { index: 2, count: 2, .. })));
    }

    /// A frame of 128 KiB could otherwise claim an image of gigabytes.
    #[test]
    fn overlapping_rows_are_rejected_in_every_format() {
        for pixels in PixelFormat::all() {
            let format = VideoFormat::new(pixels, 3000, 3000);
            let (default, size) = (format.default_planes().unwrap(), 1 << 40);
            for (index, whole) in default.iter().enumerate() {
                let place = format.plane(index, &default, size).unwrap();
                if place.tile.is_some() || place.height == 1 {
                    continue;
                }
                let row = place.row_bytes as i32;
                for stride in [0, 1, -1, row - 1, 1 - row] {
                    let mut planes = default.clone();
                    planes[index] = Plane { offset: 1 << 32, stride };
                    let overlap =
                        VideoError::OverlappingRows { index, stride, row_bytes: place.row_bytes as u64 };
                    assert_eq!(format.plane(index, &planes, size), Err(overlap), "{pixels} {whole:?}");
                    assert_eq!(format.overlapping_plane(&planes), Some(index), "{pixels}");
                }
                // Rows may touch, in both directions.
                for stride in [row, -row] {
                    let mut planes = default.clone();
                    planes[index] = Plane { offset: 1 << 32, stride };
                    assert!(format.plane(index, &planes, size).is_ok(), "{pixels} {stride}");
                    assert_eq!(format.overlapping_plane(&planes), None, "{pixels}");
                }
            }
        }
    }

    #[test]
    fn single_row_may_have_any_stride() {
        let format = VideoFormat::new("RGB".parse().unwrap(), 320, 1);
        for stride in [0, 1, -1, i32::MIN] {
            assert!(format.plane(0, &[Plane { offset: 0, stride }], 960).is_ok(), "{stride}");
        }
    }

    /// Planes may share bytes or lie in each other's padding. It claims no more than a few times
    /// the size of the frame.
    #[test]
    fn planes_beside_each_other_are_accepted() {
        let format = VideoFormat::new("I420".parse().unwrap(), 320, 240);
        let planes = [0, 320 * 240, 320 * 240 + 160].map(|offset| Plane { offset, stride: 320 });
        for index in 0..3 {
            assert!(format.plane(index, &planes, 320 * 360).is_ok(), "{index}");
        }
    }

    #[test]
    fn bottom_up_plane_begins_with_its_last_row() {
        let planes = [Plane { offset: 512 * 239, stride: -512 }, Plane { offset: 512 * 240, stride: 512 }];
        let plane = nv12().plane(0, &planes, 512 * 360).unwrap();
        assert_eq!((plane.offset, plane.stride, plane.range), (512 * 239, -512, 0..512 * 239 + 320));
    }

    #[test]
    fn tiles_outside_frame_are_rejected() {
        let tiled = VideoFormat::new("NV12_4L4".parse().unwrap(), 9, 9);
        let plane = |stride, size| tiled.plane(0, &[Plane { offset: 0, stride }; 2], size);
        assert_eq!(plane(4 << 16 | 3, 4 * 3 * 16).unwrap().stride, 3 * 16);
        for (stride, size) in
            [(4 << 16 | 3, 191), (2 << 16 | 3, 1 << 20), (3 << 16 | 2, 1 << 20), (-1, 1 << 40)]
        {
            assert!(matches!(plane(stride, size), Err(VideoError::OutOfBounds { .. })), "{stride:x}");
        }
    }

    #[test]
    fn huge_images_are_rejected() {
        for pixels in PixelFormat::all() {
            let huge = VideoFormat::new(pixels, i32::MAX as u32, i32::MAX as u32);
            assert!(matches!(huge.size(), Err(VideoError::TooLarge { .. })), "{pixels}");
        }
    }
}
