// SPDX-License-Identifier: MIT OR Apache-2.0

//! Shapes of planes as arrays: type, dimensions, strides.

use frameshare::video::{PixelFormat, PlaneLayout};
use pyo3::{PyResult, exceptions::PyBufferError};

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Bytes.
    U8,
    /// Numbers of 16 bits in the machine's order.
    U16,
    /// Words of 32 bits in the machine's order, of several samples.
    U32,
}

impl Element {
    /// Size in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
        }
    }

    /// The name, as in NumPy.
    pub fn name(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
        }
    }

    /// The elements of a format. Formats in the other byte order, and samples that are packed
    /// across bytes, are arrays of bytes.
    fn of(format: PixelFormat) -> Self {
        let name = format.name();
        let is_little = cfg!(target_endian = "little");
        let (own, other) = if is_little { ("LE", "BE") } else { ("BE", "LE") };
        let has = |order: &str| {
            [format!("_{order}"), format!("_10{order}"), format!("_12{order}"), format!("_16{order}")]
                .iter()
                .any(|end| name.ends_with(end.as_str()))
                || name.ends_with(&format!("_{order}16"))
                || name.ends_with(&format!("10_{order}16"))
        };
        match name {
            "Y410" | "BGR10A2_LE" | "RGB10A2_LE" if is_little => Self::U32,
            "v216" | "Y210" if is_little => Self::U16,
            "RGB16" | "BGR16" | "RGB15" | "BGR15" | "ARGB64" | "AYUV64" => Self::U16,
            "Y410" | "BGR10A2_LE" | "RGB10A2_LE" | "v216" | "Y210" => Self::U8,
            _ if has(other) => Self::U8,
            _ if has(own) => Self::U16,
            _ => Self::U8,
        }
    }
}

/// Formats of which several samples share bytes across pixels: their rows are plain bytes.
const BIT_PACKED: [&str; 8] =
    ["v210", "UYVP", "IYU1", "GRAY10_LE32", "NV12_10LE32", "NV16_10LE32", "NV12_10LE40", "NV12_10LE40_4L4"];

/// Rows, columns and components.
pub const MAX_DIMENSIONS: usize = 3;

/// A plane as an array, of up to [`MAX_DIMENSIONS`] dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayLayout {
    /// Bytes from the start of the frame to the first element.
    pub offset: usize,
    /// Type of the elements.
    pub element: Element,
    /// Rows, columns, and components if there are several.
    pub shape: Vec<i64>,
    /// Bytes from one element to the next in each dimension.
    pub strides: Vec<i64>,
}

impl ArrayLayout {
    /// The array of a plane. Tiles are an array of bytes, a row of tiles each row.
    pub fn of(format: PixelFormat, plane: &PlaneLayout) -> Self {
        let mut element = Element::of(format);
        let is_bytes = plane.tile.is_some() || BIT_PACKED.contains(&format.name());
        if is_bytes || !plane.row_bytes.is_multiple_of(element.size()) {
            element = Element::U8;
        }
        let rows = match plane.tile {
            Some(_) => plane.range.len() / plane.row_bytes,
            None => plane.height as usize,
        };
        let pixel = if is_bytes { 1 } else { (plane.row_bytes / plane.width as usize).max(element.size()) };
        let components = if plane.row_bytes.is_multiple_of(pixel) { pixel / element.size() } else { 1 };
        let columns = plane.row_bytes / (components * element.size());
        // The stride of a single row is of no use, and may be less than the row.
        let stride = if rows == 1 { plane.row_bytes as i64 } else { plane.stride as i64 };
        let (mut shape, mut strides) =
            (vec![rows as i64, columns as i64], vec![stride, (components * element.size()) as i64]);
        if components > 1 {
            shape.push(components as i64);
            strides.push(element.size() as i64);
        }
        Self { offset: plane.offset, element, shape, strides }
    }

    /// The array of a whole frame, whose planes lie one behind the other: one above the other if
    /// their rows are equally long, as those of NV12, or as rows of the first one, as I420's.
    ///
    /// # Errors
    /// The reason, if the planes do not touch.
    pub fn whole(planes: &[&Self]) -> Result<Self, String> {
        let [first, rest @ ..] = planes else { return Err("the frame has no planes".into()) };
        if rest.is_empty() {
            return Ok((*first).clone());
        }
        let (stride, row, element) = (first.strides[0], first.row_bytes(), first.element);
        if rest.iter().any(|plane| plane.element != element) {
            return Err("the planes have different types: use frame.plane(i)".into());
        }
        let mut end = first.end();
        for (index, plane) in rest.iter().enumerate() {
            if end != Some(plane.offset as i64) {
                return Err(format!(
                    "plane {} begins at byte {}, not behind the plane before it: use frame.plane(i)",
                    index + 1,
                    plane.offset
                ));
            }
            end = plane.end();
        }
        let size = element.size() as i64;
        let is_stacked = rest.iter().all(|plane| plane.strides[0] == stride && plane.row_bytes() == row);
        let total = planes.iter().map(|plane| plane.shape[0] * plane.row_bytes()).sum::<i64>();
        let is_packed = planes.iter().all(|plane| plane.strides[0] == plane.row_bytes()) && total % row == 0;
        let rows = match (is_stacked, is_packed) {
            (true, _) => planes.iter().map(|plane| plane.shape[0]).sum(),
            (false, true) => total / row,
            (false, false) => {
                return Err("the planes have rows of different lengths: use frame.plane(i)".into());
            }
        };
        let (shape, strides) = (vec![rows, row / size], vec![stride, size]);
        Ok(Self { offset: first.offset, element, shape, strides })
    }

    /// The same elements without gaps, from the start of their memory.
    pub fn packed(&self) -> Self {
        let mut distance = self.element.size() as i64;
        let mut strides: Vec<i64> = self
            .shape
            .iter()
            .rev()
            .map(|length| {
                let stride = distance;
                distance *= length;
                stride
            })
            .collect();
        strides.reverse();
        Self { offset: 0, strides, ..self.clone() }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> i64 {
        self.shape[1..].iter().product::<i64>() * self.element.size() as i64
    }

    /// Bytes of all rows, without gaps.
    pub fn size(&self) -> usize {
        (self.shape[0] * self.row_bytes()) as usize
    }

    /// The byte behind the last row and its padding; `None` for bottom-up images.
    fn end(&self) -> Option<i64> {
        (self.strides[0] > 0).then(|| self.offset as i64 + self.shape[0] * self.strides[0])
    }

    /// Number of components of each pixel.
    pub fn components(&self) -> i64 {
        self.shape.get(2).copied().unwrap_or(1)
    }

    /// The strides in elements.
    ///
    /// # Errors
    /// `BufferError` if they are no whole numbers.
    pub fn element_strides(&self) -> PyResult<Vec<i64>> {
        let size = self.element.size() as i64;
        if let Some(odd) = self.strides.iter().find(|stride| *stride % size != 0) {
            let name = self.element.name();
            return Err(PyBufferError::new_err(format!(
                "rows of {name} are {odd} bytes apart, which is no whole number of elements"
            )));
        }
        Ok(self.strides.iter().map(|stride| stride / size).collect())
    }

    /// Returns whether the elements lie one after the other, in the order of their dimensions.
    pub fn is_c_contiguous(&self) -> bool {
        let mut expected = self.element.size() as i64;
        self.shape.iter().zip(&self.strides).rev().all(|(length, stride)| {
            let fits = *length == 1 || *stride == expected;
            expected *= length;
            fits
        })
    }
}
