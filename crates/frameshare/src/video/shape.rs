// SPDX-License-Identifier: MIT OR Apache-2.0

//! Shapes of planes: their rows or tiles as functions of the image's size.

/// A tile: a small image that is stored in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Bytes of a row of the tile.
    pub row_bytes: u32,
    /// Rows of the tile.
    pub rows: u32,
}

impl Tile {
    /// Size of the tile in bytes.
    pub fn bytes(self) -> usize {
        self.row_bytes as usize * self.rows as usize
    }
}

/// Width and height of an image in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    pub width: u32,
    /// Rows of a frame.
    pub height: u32,
    /// Rows of a buffer: half of `height` if fields alternate.
    pub rows: u32,
    pub is_interlaced: bool,
}

/// The shape of one plane.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    Rows(Rows),
    Tiles(Tiles),
    /// 256 colors of four bytes.
    Palette,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Rows {
    /// Columns and rows of the image for each of the plane.
    pub sub: (u32, u32),
    /// A row is a sequence of units, each of so many columns of the image and bytes.
    pub unit: (u32, u32),
    /// The last unit of a row is cut after its last used byte.
    pub is_cut: bool,
    /// Alignment of the default stride in bytes.
    pub align: u32,
    /// The default layout has a multiple of this number of rows, progressive and interlaced.
    pub multiple: (u32, u32),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Tiles {
    pub tile: Tile,
    /// Columns and rows of the image for each of the plane.
    pub sub: (u32, u32),
    /// So many columns of the image take so many tiles.
    pub across: (u32, u32),
    /// The number of columns of tiles is a multiple of this.
    pub columns: u32,
    /// Rows of the image for each row of tiles.
    pub down: u32,
    /// The number of rows of tiles is a multiple of this, progressive and interlaced.
    pub multiple: (u32, u32),
    /// Alternating fields have tiles for all rows of the frame.
    pub is_whole: bool,
}

/// Size of a plane, and its place in the default layout.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measure {
    /// Columns and rows of pixels.
    pub width: u32,
    pub height: u32,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// The default stride, as in a descriptor.
    pub stride: u64,
    /// Bytes in the default layout.
    pub size: u64,
    /// Tile, and columns and rows of tiles.
    pub tiles: Option<(Tile, u64, u64)>,
}

const PALETTE: Measure =
    Measure { width: 256, height: 1, row_bytes: 1024, stride: 4, size: 1024, tiles: None };

impl Shape {
    /// Returns the plane's size in an image whose width and height are below 2³¹; `None` if it
    /// overflows.
    pub fn measure(&self, of: Extent) -> Option<Measure> {
        match self {
            Self::Rows(rows) => rows.measure(of),
            Self::Tiles(tiles) => tiles.measure(of),
            Self::Palette => Some(PALETTE),
        }
    }
}

impl Rows {
    fn measure(&self, of: Extent) -> Option<Measure> {
        let (width, height) = (of.width.div_ceil(self.sub.0), of.rows.div_ceil(self.sub.1));
        let (columns, bytes) = (u64::from(self.unit.0), u64::from(self.unit.1));
        let row_bytes = match self.is_cut {
            true => (u64::from(of.width) * bytes).div_ceil(columns),
            false => u64::from(of.width).div_ceil(columns) * bytes,
        };
        let stride = row_bytes.next_multiple_of(self.align.into());
        let rows = u64::from(height).next_multiple_of(of.multiple(self.multiple));
        let size = stride.checked_mul(rows)?;
        Some(Measure { width, height, row_bytes, stride, size, tiles: None })
    }
}

impl Tiles {
    fn measure(&self, of: Extent) -> Option<Measure> {
        let (width, height) = (of.width.div_ceil(self.sub.0), of.rows.div_ceil(self.sub.1));
        let across = (u64::from(of.width) * u64::from(self.across.1)).div_ceil(self.across.0.into());
        let columns = across.next_multiple_of(self.columns.into());
        let image_rows = if self.is_whole { of.height } else { of.rows };
        let rows = u64::from(image_rows.div_ceil(self.down)).next_multiple_of(of.multiple(self.multiple));
        // Both numbers share the 32 bits of the stride.
        if columns > 0xffff || rows > 0x7fff {
            return None;
        }
        let row_bytes = columns * self.tile.bytes() as u64;
        let (stride, size) = (rows << 16 | columns, row_bytes * rows);
        Some(Measure { width, height, row_bytes, stride, size, tiles: Some((self.tile, columns, rows)) })
    }
}

impl Extent {
    fn multiple(self, (progressive, interlaced): (u32, u32)) -> u64 {
        u64::from(if self.is_interlaced { interlaced } else { progressive })
    }
}
