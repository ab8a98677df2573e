// SPDX-License-Identifier: MIT OR Apache-2.0

//! Samples in the rows of a plane.

use frameshare::video::PlaneLayout;

/// The encoding of samples in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// One byte.
    Bytes,
    /// Two bytes; the value is `shift` bits above the lowest.
    Words { big: bool, depth: u32, shift: u32 },
    /// Three of ten bits in each little-endian word of 32 bits.
    ThreeIn32,
    /// Ten bits one after another, from the lowest (little-endian) or the highest bit of each byte.
    Packed10 { big: bool },
    /// A word for each pixel; shift and depth of each component in it.
    Fields { bytes: usize, big: bool, fields: [(u32, u32); 3] },
    /// Bytes of four pixels: U Y Y V Y Y.
    Iyu1,
    /// A byte that selects a color of the second plane.
    Palette,
}

impl Encoding {
    /// Returns the depths of the components in bits.
    pub fn depths(self) -> [u32; 3] {
        match self {
            Self::Bytes | Self::Iyu1 | Self::Palette => [8; 3],
            Self::Words { depth, .. } => [depth; 3],
            Self::ThreeIn32 | Self::Packed10 { .. } => [10; 3],
            Self::Fields { fields, .. } => fields.map(|(_, depth)| depth),
        }
    }

    /// Returns the place of a sample of a component: first byte, number of bytes, order of bytes,
    /// and shift in the word that they form.
    pub fn place(self, component: usize, sample: usize) -> Place {
        let place = |byte, bytes, big, shift| Place { byte, bytes, big, shift };
        match self {
            Self::Bytes | Self::Palette => place(sample, 1, false, 0),
            Self::Words { big, shift, .. } => place(2 * sample, 2, big, shift),
            Self::ThreeIn32 => place(4 * (sample / 3), 4, false, 10 * (sample % 3) as u32),
            Self::Packed10 { big } => {
                let bit = (10 * sample % 8) as u32;
                place(10 * sample / 8, 2, big, if big { 6 - bit } else { bit })
            }
            Self::Fields { bytes, big, fields } => place(bytes * sample, bytes, big, fields[component].0),
            Self::Iyu1 if component == 0 => place(6 * (sample / 4) + [1, 2, 4, 5][sample % 4], 1, false, 0),
            Self::Iyu1 => place(sample, 1, false, 0),
        }
    }
}

/// The place of a sample in a row.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub byte: usize,
    pub bytes: usize,
    pub big: bool,
    pub shift: u32,
}

/// Returns the byte of a plane with this number in a row, counted from the start of the plane's
/// range; `None` outside the plane.
pub fn locate(layout: &PlaneLayout, row: usize, byte: usize) -> Option<usize> {
    let Some(tile) = layout.tile else { return Some(layout.range_of(row)?.start + byte) };
    let (tile_row, row) = (row / tile.rows as usize, row % tile.rows as usize);
    let (column, byte) = (byte / tile.row_bytes as usize, byte % tile.row_bytes as usize);
    let start = layout.range_of(tile_row)?.start + column * tile.bytes();
    Some(start + row * tile.row_bytes as usize + byte)
}
