// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table of formats: names, color models, and the shapes of the planes.

use super::{
    color_model::ColorModel::{self, Gray, Rgb, Yuv},
    shape::{
        Rows,
        Shape::{self, Palette},
        Tile, Tiles,
    },
};

/// A format.
pub(super) struct Row {
    pub name: &'static str,
    pub color: ColorModel,
    pub planes: &'static [Shape],
}

/// Formats whose memory has no planes.
pub(super) const WITHOUT_PLANES: [&str; 2] = ["ENCODED", "DMA_DRM"];

/// Samples of `bytes` bytes, one for each `x` columns and `y` rows.
const fn samples(x: u32, y: u32, bytes: u32) -> Shape {
    Shape::Rows(Rows { sub: (x, y), unit: (x, bytes), is_cut: false, align: 4, multiple: (1, 1) })
}

/// Pixels packed into units of `columns` columns and `bytes` bytes.
const fn packed(columns: u32, bytes: u32, align: u32) -> Shape {
    Shape::Rows(Rows { sub: (1, 1), unit: (columns, bytes), is_cut: false, align, multiple: (1, 1) })
}

/// Like `shape`, with numbers of rows in the default layout that are multiples of these.
const fn multiple(shape: Shape, progressive: u32, interlaced: u32) -> Shape {
    match shape {
        Shape::Rows(rows) => Shape::Rows(Rows { multiple: (progressive, interlaced), ..rows }),
        other => other,
    }
}

/// Like `shape`, with an even number of rows in the default layout.
const fn even(shape: Shape) -> Shape {
    multiple(shape, 2, 2)
}

/// Like `shape`, with an even number of rows in the default layout of interlaced frames.
const fn paired(shape: Shape) -> Shape {
    multiple(shape, 1, 2)
}

/// Like `shape`, with pixels for each `x` columns and `y` rows only.
const fn subsampled(shape: Shape, x: u32, y: u32) -> Shape {
    match shape {
        Shape::Rows(rows) => Shape::Rows(Rows { sub: (x, y), ..rows }),
        other => other,
    }
}

/// Luma in tiles of `row_bytes` by `rows` bytes for `across` columns.
const fn luma_tiles(row_bytes: u32, rows: u32, across: (u32, u32)) -> Tiles {
    let tile = Tile { row_bytes, rows };
    Tiles { tile, sub: (1, 1), across, columns: 1, down: rows, multiple: (1, 1), is_whole: true }
}

/// Chroma in tiles of the same size as luma's, half as many.
const fn half_as_many(luma: Tiles) -> Tiles {
    Tiles { sub: (2, 2), down: 2 * luma.down, multiple: (1, 1), ..luma }
}

/// Chroma in tiles of half the size of luma's, as many.
const fn half_as_high(luma: Tiles) -> Tiles {
    let tile = Tile { rows: luma.tile.rows / 2, ..luma.tile };
    Tiles { sub: (2, 2), tile, ..luma }
}

/// Like `shape`, with rows that end in a part of a unit.
const fn cut(shape: Shape) -> Shape {
    match shape {
        Shape::Rows(rows) => Shape::Rows(Rows { is_cut: true, ..rows }),
        other => other,
    }
}

const Y8: Shape = samples(1, 1, 1);
const Y16: Shape = samples(1, 1, 2);
const C8_420: Shape = paired(samples(2, 2, 1));
const C16_420: Shape = paired(samples(2, 2, 2));
const C8_422: Shape = samples(2, 1, 1);
const C16_422: Shape = even(samples(2, 1, 2));
const C8_410: Shape = paired(samples(4, 4, 1));
const UV8_420: Shape = samples(2, 2, 2);
/// Three samples of ten bits in 32 bits; four in 40.
const Y10_32: Shape = packed(3, 4, 4);
const Y10_40: Shape = packed(4, 5, 5);

const T64Z32: Tiles = Tiles { columns: 2, is_whole: false, ..luma_tiles(64, 32, (64, 1)) };
const T4L4: Tiles = luma_tiles(4, 4, (4, 1));
const T4L4_10: Tiles = luma_tiles(5, 4, (4, 1));
const T32L32: Tiles = luma_tiles(32, 32, (32, 1));
const T16L32: Tiles = luma_tiles(16, 32, (16, 1));
const T16L32_10: Tiles = luma_tiles(20, 32, (16, 1));
const T8L128: Tiles = Tiles { multiple: (1, 2), is_whole: false, ..luma_tiles(8, 128, (8, 1)) };
const T8L128_10: Tiles = Tiles { across: (32, 5), ..T8L128 };

const PACKED_2: &[Shape] = &[Y16];
const PACKED_3: &[Shape] = &[packed(1, 3, 4)];
const PACKED_4: &[Shape] = &[packed(1, 4, 4)];
const PACKED_8: &[Shape] = &[packed(1, 8, 8)];
const PACKED_422: &[Shape] = &[packed(2, 4, 4)];
const PACKED_422_16: &[Shape] = &[packed(2, 8, 8)];
const I420: &[Shape] = &[even(Y8), C8_420, C8_420];
const I420_16: &[Shape] = &[even(Y16), C16_420, C16_420];
const I422_16: &[Shape] = &[even(Y16), C16_422, C16_422];
const I444: &[Shape] = &[Y8, Y8, Y8];
const I444_16: &[Shape] = &[Y16, Y16, Y16];
const I444A_16: &[Shape] = &[Y16, Y16, Y16, Y16];
const A420_16: &[Shape] = &[even(Y16), C16_420, C16_420, even(Y16)];
const A422_16: &[Shape] = &[even(Y16), C16_422, C16_422, even(Y16)];
const YUV9: &[Shape] = &[Y8, C8_410, C8_410];
const NV12: &[Shape] = &[even(Y8), paired(UV8_420)];
const NV16: &[Shape] = &[Y8, samples(2, 1, 2)];
const P010: &[Shape] = &[even(Y16), samples(2, 2, 4)];
const MT2110: &[Shape] = &[Shape::Tiles(T16L32_10), Shape::Tiles(half_as_high(T16L32_10))];

/// Up to 1.26 GStreamer leaves out the last bytes of an odd width's last pair.
const UYVP: &[Shape] = &[cut(packed(2, 5, 4))];

const fn row(name: &'static str, color: ColorModel, planes: &'static [Shape]) -> Row {
    Row { name, color, planes }
}

/// All formats with planes.
pub(super) static ROWS: [Row; 136] = [
    row("I420", Yuv, I420),
    row("YV12", Yuv, I420),
    row("YUY2", Yuv, PACKED_422),
    row("UYVY", Yuv, PACKED_422),
    row("AYUV", Yuv, PACKED_4),
    row("RGBx", Rgb, PACKED_4),
    row("BGRx", Rgb, PACKED_4),
    row("xRGB", Rgb, PACKED_4),
    row("xBGR", Rgb, PACKED_4),
    row("RGBA", Rgb, PACKED_4),
    row("BGRA", Rgb, PACKED_4),
    row("ARGB", Rgb, PACKED_4),
    row("ABGR", Rgb, PACKED_4),
    row("RGB", Rgb, PACKED_3),
    row("BGR", Rgb, PACKED_3),
    row("Y41B", Yuv, &[Y8, samples(4, 1, 1), samples(4, 1, 1)]),
    row("Y42B", Yuv, &[Y8, C8_422, C8_422]),
    row("YVYU", Yuv, PACKED_422),
    row("Y444", Yuv, I444),
    row("v210", Yuv, &[packed(6, 16, 128)]),
    row("v216", Yuv, PACKED_422_16),
    row("NV12", Yuv, NV12),
    row("NV21", Yuv, NV12),
    row("GRAY8", Gray, &[Y8]),
    row("GRAY16_BE", Gray, PACKED_2),
    row("GRAY16_LE", Gray, PACKED_2),
    row("v308", Yuv, PACKED_3),
    row("RGB16", Rgb, PACKED_2),
    row("BGR16", Rgb, PACKED_2),
    row("RGB15", Rgb, PACKED_2),
    row("BGR15", Rgb, PACKED_2),
    row("UYVP", Yuv, UYVP),
    row("A420", Yuv, &[even(Y8), C8_420, C8_420, even(Y8)]),
    row("RGB8P", Rgb, &[Y8, Palette]),
    row("YUV9", Yuv, YUV9),
    row("YVU9", Yuv, YUV9),
    row("IYU1", Yuv, &[packed(4, 6, 4)]),
    row("ARGB64", Rgb, PACKED_8),
    row("AYUV64", Yuv, PACKED_8),
    row("r210", Rgb, PACKED_4),
    row("I420_10BE", Yuv, I420_16),
    row("I420_10LE", Yuv, I420_16),
    row("I422_10BE", Yuv, I422_16),
    row("I422_10LE", Yuv, I422_16),
    row("Y444_10BE", Yuv, I444_16),
    row("Y444_10LE", Yuv, I444_16),
    row("GBR", Rgb, I444),
    row("GBR_10BE", Rgb, I444_16),
    row("GBR_10LE", Rgb, I444_16),
    row("NV16", Yuv, NV16),
    row("NV24", Yuv, &[Y8, samples(1, 1, 2)]),
    row("NV12_64Z32", Yuv, &[Shape::Tiles(T64Z32), Shape::Tiles(half_as_many(T64Z32))]),
    row("A420_10BE", Yuv, A420_16),
    row("A420_10LE", Yuv, A420_16),
    row("A422_10BE", Yuv, A422_16),
    row("A422_10LE", Yuv, A422_16),
    row("A444_10BE", Yuv, I444A_16),
    row("A444_10LE", Yuv, I444A_16),
    row("NV61", Yuv, NV16),
    row("P010_10BE", Yuv, P010),
    row("P010_10LE", Yuv, P010),
    row("IYU2", Yuv, PACKED_3),
    row("VYUY", Yuv, PACKED_422),
    row("GBRA", Rgb, &[Y8, Y8, Y8, Y8]),
    row("GBRA_10BE", Rgb, I444A_16),
    row("GBRA_10LE", Rgb, I444A_16),
    row("GBR_12BE", Rgb, I444_16),
    row("GBR_12LE", Rgb, I444_16),
    row("GBRA_12BE", Rgb, I444A_16),
    row("GBRA_12LE", Rgb, I444A_16),
    row("I420_12BE", Yuv, I420_16),
    row("I420_12LE", Yuv, I420_16),
    row("I422_12BE", Yuv, I422_16),
    row("I422_12LE", Yuv, I422_16),
    row("Y444_12BE", Yuv, I444_16),
    row("Y444_12LE", Yuv, I444_16),
    row("GRAY10_LE32", Gray, &[even(Y10_32)]),
    row("NV12_10LE32", Yuv, &[even(Y10_32), paired(subsampled(Y10_32, 2, 2))]),
    row("NV16_10LE32", Yuv, &[Y10_32, subsampled(Y10_32, 2, 1)]),
    row("NV12_10LE40", Yuv, &[even(Y10_40), paired(subsampled(Y10_40, 2, 2))]),
    row("Y210", Yuv, PACKED_422_16),
    row("Y410", Yuv, PACKED_4),
    row("VUYA", Yuv, PACKED_4),
    row("BGR10A2_LE", Rgb, PACKED_4),
    row("RGB10A2_LE", Rgb, PACKED_4),
    row("Y444_16BE", Yuv, I444_16),
    row("Y444_16LE", Yuv, I444_16),
    row("P016_BE", Yuv, P010),
    row("P016_LE", Yuv, P010),
    row("P012_BE", Yuv, P010),
    row("P012_LE", Yuv, P010),
    row("Y212_BE", Yuv, PACKED_422_16),
    row("Y212_LE", Yuv, PACKED_422_16),
    row("Y412_BE", Yuv, PACKED_8),
    row("Y412_LE", Yuv, PACKED_8),
    row("NV12_4L4", Yuv, &[Shape::Tiles(T4L4), Shape::Tiles(half_as_many(T4L4))]),
    row("NV12_32L32", Yuv, &[Shape::Tiles(T32L32), Shape::Tiles(half_as_many(T32L32))]),
    row("RGBP", Rgb, I444),
    row("BGRP", Rgb, I444),
    row("AV12", Yuv, &[even(Y8), UV8_420, even(Y8)]),
    row("ARGB64_LE", Rgb, PACKED_8),
    row("ARGB64_BE", Rgb, PACKED_8),
    row("RGBA64_LE", Rgb, PACKED_8),
    row("RGBA64_BE", Rgb, PACKED_8),
    row("BGRA64_LE", Rgb, PACKED_8),
    row("BGRA64_BE", Rgb, PACKED_8),
    row("ABGR64_LE", Rgb, PACKED_8),
    row("ABGR64_BE", Rgb, PACKED_8),
    row("NV12_16L32S", Yuv, &[Shape::Tiles(T16L32), Shape::Tiles(half_as_high(T16L32))]),
    row("NV12_8L128", Yuv, &[Shape::Tiles(T8L128), Shape::Tiles(half_as_many(T8L128))]),
    row("NV12_10BE_8L128", Yuv, &[Shape::Tiles(T8L128_10), Shape::Tiles(half_as_many(T8L128_10))]),
    row("NV12_10LE40_4L4", Yuv, &[Shape::Tiles(T4L4_10), Shape::Tiles(half_as_many(T4L4_10))]),
    row("MT2110T", Yuv, MT2110),
    row("MT2110R", Yuv, MT2110),
    row("A422", Yuv, &[even(Y8), even(C8_422), even(C8_422), even(Y8)]),
    row("A444", Yuv, &[even(Y8), even(Y8), even(Y8), even(Y8)]),
    row("A444_12LE", Yuv, I444A_16),
    row("A444_12BE", Yuv, I444A_16),
    row("A422_12LE", Yuv, A422_16),
    row("A422_12BE", Yuv, A422_16),
    row("A420_12LE", Yuv, A420_16),
    row("A420_12BE", Yuv, A420_16),
    row("A444_16LE", Yuv, I444A_16),
    row("A444_16BE", Yuv, I444A_16),
    row("A422_16LE", Yuv, A422_16),
    row("A422_16BE", Yuv, A422_16),
    row("A420_16LE", Yuv, A420_16),
    row("A420_16BE", Yuv, A420_16),
    row("GBR_16LE", Rgb, I444_16),
    row("GBR_16BE", Rgb, I444_16),
    row("RBGA", Rgb, PACKED_4),
    row("Y216_LE", Yuv, PACKED_422_16),
    row("Y216_BE", Yuv, PACKED_422_16),
    row("Y416_LE", Yuv, PACKED_8),
    row("Y416_BE", Yuv, PACKED_8),
    row("GRAY10_LE16", Gray, PACKED_2),
];
