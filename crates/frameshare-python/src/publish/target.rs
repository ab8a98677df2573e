// SPDX-License-Identifier: MIT OR Apache-2.0

//! The layout of the frames of an exporter, and copies of arrays into slots.
//!
//! # Safety
//!
//! A slot is written by its only holder, before it is published. Arrays are valid while they are
//! held, and each row that is copied was checked to be inside its array and its plane.
#![allow(unsafe_code)]

use super::array::{Array, Place, shape_text};
use crate::{error::OrRaise, layout::ArrayLayout};
use frameshare::{
    cuda::Stream,
    exporter::Slot,
    memory::Address,
    video::{PlaneLayout, VideoFormat},
};
use frameshare_cuda::copy::{Plane as Rows, Side};
use pyo3::{PyResult, exceptions::PyValueError};
use std::ptr;

/// The layout of frames of raw video.
#[derive(Clone, Debug)]
pub struct Video {
    pub format: VideoFormat,
    pub planes: Vec<PlaneLayout>,
    pub arrays: Vec<ArrayLayout>,
}

/// Rows that are copied: from an address on, to an offset in the slot.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    from: usize,
    from_stride: i64,
    to: usize,
    to_stride: i64,
    row_bytes: usize,
    rows: usize,
}

impl Copied {
    /// All bytes of plain data.
    pub fn of_bytes(from: usize, size: usize) -> Self {
        Self { from, from_stride: 0, to: 0, to_stride: 0, row_bytes: size, rows: 1 }
    }
}

impl Video {
    /// The layout of GStreamer for a format.
    ///
    /// # Errors
    /// `ValueError` for a size that overflows.
    pub fn new(format: VideoFormat) -> PyResult<Self> {
        let size = format.size().or_raise()?;
        let planes = (0..format.pixels.plane_count()).map(|index| format.plane(index, &[], size));
        let planes = planes.collect::<Result<Vec<_>, _>>().or_raise()?;
        let arrays = planes.iter().map(|plane| ArrayLayout::of(format.pixels, plane)).collect();
        Ok(Self { format, planes, arrays })
    }

    /// The arrays that are expected, for errors.
    fn expected(&self) -> String {
        let VideoFormat { pixels, width, height, .. } = &self.format;
        let element = self.arrays[0].element.name();
        let shapes = self.arrays.iter().map(|array| shape_text(&array.shape)).collect::<Vec<_>>();
        let frames = format!("frames of {pixels} {width}x{height} are {element} ");
        match (&shapes[..], self.whole()) {
            ([one], _) => format!("{frames}{one}"),
            (several, Some(whole)) => {
                format!("{frames}{}, or a list of {}", shape_text(&whole), several.join(", "))
            }
            (several, None) => format!("{frames}lists of {}", several.join(", ")),
        }
    }

    /// The shape of one array of all planes, if their rows fill whole rows of the first one.
    fn whole(&self) -> Option<[i64; 2]> {
        let first = self.planes[0].row_bytes;
        let size = self.arrays[0].element.size();
        let total: usize =
            self.planes.iter().zip(&self.arrays).map(|(plane, array)| plane.row_bytes * rows(array)).sum();
        let is_whole =
            total.is_multiple_of(first) && self.arrays.iter().all(|array| array.element.size() == size);
        is_whole.then(|| [(total / first) as i64, (first / size) as i64])
    }

    /// Returns the copies of arrays into a frame: one array for all planes, or one for each.
    ///
    /// # Errors
    /// `ValueError` for another type, shape or stride than the format's, and says which is
    /// expected.
    pub fn copies(&self, arrays: &[Array], by_plane: bool) -> PyResult<Vec<Copied>> {
        if by_plane {
            if arrays.len() != self.planes.len() {
                let (found, expected) = (arrays.len(), self.expected());
                return Err(PyValueError::new_err(format!("cannot publish {found} planes: {expected}")));
            }
            let planes = arrays.iter().enumerate();
            return planes.map(|(index, array)| self.copy_of_plane(index, array)).collect();
        }
        let array = &arrays[0];
        if self.planes.len() == 1 && array.shape.len() > 1 {
            return Ok(vec![self.copy_of_plane(0, array)?]);
        }
        self.copies_of_whole(array)
    }

    fn refused(&self, array: &Array) -> pyo3::PyErr {
        PyValueError::new_err(format!("cannot publish {array}: {}", self.expected()))
    }

    fn check_element(&self, index: usize, array: &Array) -> PyResult<()> {
        if array.element == self.arrays[index].element.name() { Ok(()) } else { Err(self.refused(array)) }
    }

    /// Checks that rows of an array are dense inside, and can be copied on its device.
    fn check_rows(&self, array: &Array) -> PyResult<()> {
        let stride = array.strides[0];
        let row = array.bytes().unwrap_or_default() as i64 / array.shape[0].max(1);
        let is_copyable = array.shape[0] <= 1 || array.place == Place::Host || stride >= row;
        if array.is_dense_from(1) && is_copyable {
            return Ok(());
        }
        Err(PyValueError::new_err(format!(
            "cannot publish {array} with strides of {} bytes: the elements of a row have to lie one after the \
             other, and rows on a GPU in ascending order (numpy.ascontiguousarray, tensor.contiguous)",
            shape_text(&array.strides)
        )))
    }

    fn copy_of_plane(&self, index: usize, array: &Array) -> PyResult<Copied> {
        self.check_element(index, array)?;
        let expected = &self.arrays[index].shape;
        let flat = [expected[0], expected[1..].iter().product()];
        let with_one = [expected[0], expected[1], 1];
        let fits = array.shape == *expected
            || array.shape == flat
            || (expected.len() == 2 && array.shape == with_one);
        if !fits {
            return Err(self.refused(array));
        }
        self.check_rows(array)?;
        let plane = &self.planes[index];
        Ok(Copied {
            from: array.start,
            from_stride: array.strides[0],
            to: plane.offset,
            to_stride: plane.stride as i64,
            row_bytes: plane.row_bytes,
            rows: rows(&self.arrays[index]),
        })
    }

    fn copies_of_whole(&self, array: &Array) -> PyResult<Vec<Copied>> {
        self.check_element(0, array)?;
        let whole = self.whole();
        let tight = |(plane, array): (&PlaneLayout, &ArrayLayout)| plane.row_bytes * rows(array);
        let total: usize = self.planes.iter().zip(&self.arrays).map(tight).sum();
        let is_flat = array.shape.len() == 1 && array.bytes() == Some(total);
        if !is_flat && whole.is_none_or(|whole| array.shape != whole) {
            return Err(self.refused(array));
        }
        let first = self.planes[0].row_bytes;
        let stride = if is_flat { first as i64 } else { array.strides[0] };
        // Rows of several lengths share a row of the array only if nothing is between them.
        let have_one_length = self.planes.iter().all(|plane| plane.row_bytes == first);
        let is_dense = array.is_dense_from(0);
        if !is_dense {
            if is_flat || !have_one_length {
                return Err(PyValueError::new_err(format!(
                    "cannot publish {array} with strides of {} bytes: all planes of {} in one array have to lie one \
                     after the other (numpy.ascontiguousarray, tensor.contiguous)",
                    shape_text(&array.strides),
                    self.format.pixels
                )));
            }
            self.check_rows(array)?;
        }
        let mut before = 0;
        let copies = self.planes.iter().zip(&self.arrays).map(|(plane, layout)| {
            let rows = rows(layout);
            let (from_stride, distance) = match is_dense {
                true => (plane.row_bytes as i64, before as i64),
                false => (stride, (before / first) as i64 * stride),
            };
            before += plane.row_bytes * rows;
            Copied {
                from: array.start.wrapping_add_signed(distance as isize),
                from_stride,
                to: plane.offset,
                to_stride: plane.stride as i64,
                row_bytes: plane.row_bytes,
                rows,
            }
        });
        Ok(merged(copies))
    }
}

/// Joins copies of planes that follow each other with the same strides on both sides: one call of
/// the driver for NV12.
fn merged(copies: impl Iterator<Item = Copied>) -> Vec<Copied> {
    let mut all: Vec<Copied> = Vec::new();
    for next in copies {
        let end = |start: usize, stride: i64, rows: usize| {
            start.wrapping_add_signed((stride * rows as i64) as isize)
        };
        match all.last_mut() {
            Some(last)
                if (last.row_bytes, last.from_stride, last.to_stride)
                    == (next.row_bytes, next.from_stride, next.to_stride)
                    && end(last.from, last.from_stride, last.rows) == next.from
                    && end(last.to, last.to_stride, last.rows) == next.to =>
            {
                last.rows += next.rows;
            }
            _ => all.push(next),
        }
    }
    all
}

fn rows(array: &ArrayLayout) -> usize {
    usize::try_from(array.shape[0]).unwrap_or_default()
}

/// Copies rows of host memory into a slot in host memory.
pub fn copy_on_host(slot: &Slot, copies: &[Copied]) {
    let Some(start) = slot.as_ptr() else { return };
    for copy in copies {
        let tight = copy.row_bytes as i64;
        if (copy.from_stride, copy.to_stride) == (tight, tight) {
            let from = ptr::with_exposed_provenance::<u8>(copy.from);
            let size = copy.row_bytes * copy.rows;
            // SAFETY: as below: the rows lie one after the other on both sides.
            unsafe { ptr::copy_nonoverlapping(from, start.as_ptr().add(copy.to), size) };
            continue;
        }
        for row in 0..copy.rows {
            let from = copy.from.wrapping_add_signed((row as i64 * copy.from_stride) as isize);
            let to = copy.to.wrapping_add_signed((row as i64 * copy.to_stride) as isize);
            let from = ptr::with_exposed_provenance::<u8>(from);
            // SAFETY: see the header; a slot and an array of another library do not overlap.
            unsafe { ptr::copy_nonoverlapping(from, start.as_ptr().add(to), copy.row_bytes) };
        }
    }
}

/// Queues the copy of rows of GPU memory into a slot in GPU memory.
///
/// # Errors
/// Those of the driver.
pub fn copy_on_gpu(slot: &Slot, copies: &[Copied], stream: &Stream) -> PyResult<()> {
    let Address::Device(start) = slot.address() else { return Ok(()) };
    for copy in copies {
        let stride = |stride: i64| if copy.rows <= 1 { copy.row_bytes } else { stride as usize };
        let to = Rows { at: Side::Device(start + copy.to as u64), pitch: stride(copy.to_stride) };
        let from = Rows { at: Side::Device(copy.from as u64), pitch: stride(copy.from_stride) };
        // SAFETY: see the header. The caller holds the slot and the arrays until the copy has
        // ended.
        unsafe { stream.copy_2d(to, from, copy.row_bytes, copy.rows) }.or_raise()?;
    }
    Ok(())
}
