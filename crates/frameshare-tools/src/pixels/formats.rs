// SPDX-License-Identifier: MIT OR Apache-2.0

//! Table of formats: the samples that make up a pixel.

use super::samples::Encoding;

/// The samples of one component.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    pub plane: usize,
    /// Sample of the first column, and samples from one column to the next.
    pub first: usize,
    pub step: usize,
    /// Powers of two of the image's columns and rows for each of the component's.
    pub sub: (u32, u32),
}

/// The samples of the pixels of a format: Y, U, V; or R, G, B; or gray thrice.
#[derive(Clone, Copy, Debug)]
pub struct Samples {
    pub encoding: Encoding,
    pub components: [Component; 3],
}

const fn component(plane: usize, first: usize, step: usize, sub: (u32, u32)) -> Component {
    Component { plane, first, step, sub }
}

/// Components in planes of their own; the second and third are subsampled.
fn planar([one, two, three]: [usize; 3], sub: (u32, u32)) -> [Component; 3] {
    [component(one, 0, 1, (0, 0)), component(two, 0, 1, sub), component(three, 0, 1, sub)]
}

/// Luma in a plane, chroma in another, by turns.
fn semi(u: usize, v: usize, sub: (u32, u32)) -> [Component; 3] {
    [component(0, 0, 1, (0, 0)), component(1, u, 2, sub), component(1, v, 2, sub)]
}

/// Pixels of `step` samples.
fn packed(firsts: [usize; 3], step: usize) -> [Component; 3] {
    firsts.map(|first| component(0, first, step, (0, 0)))
}

/// Pairs of pixels of four samples.
fn pairs(y: usize, u: usize, v: usize) -> [Component; 3] {
    [component(0, y, 2, (0, 0)), component(0, u, 4, (1, 0)), component(0, v, 4, (1, 0))]
}

fn words(big: bool, depth: u32, shift: u32) -> Encoding {
    Encoding::Words { big, depth, shift }
}

/// Splits the name of a format into that of its arrangement and the encoding of its samples.
fn split(name: &str) -> (&str, Encoding) {
    let fields = |bytes, big, fields| Encoding::Fields { bytes, big, fields };
    match name {
        "RGB16" => return (name, fields(2, false, [(11, 5), (5, 6), (0, 5)])),
        "BGR16" => return (name, fields(2, false, [(0, 5), (5, 6), (11, 5)])),
        "RGB15" => return (name, fields(2, false, [(10, 5), (5, 5), (0, 5)])),
        "BGR15" => return (name, fields(2, false, [(0, 5), (5, 5), (10, 5)])),
        "r210" => return (name, fields(4, true, [(20, 10), (10, 10), (0, 10)])),
        "RGB10A2_LE" => return (name, fields(4, false, [(0, 10), (10, 10), (20, 10)])),
        "BGR10A2_LE" => return (name, fields(4, false, [(20, 10), (10, 10), (0, 10)])),
        "Y410" => return (name, fields(4, false, [(10, 10), (0, 10), (20, 10)])),
        "RGB8P" => return (name, Encoding::Palette),
        "IYU1" => return (name, Encoding::Iyu1),
        "v210" => return ("UYVY", Encoding::ThreeIn32),
        "UYVP" => return ("UYVY", Encoding::Packed10 { big: true }),
        "v216" => return ("UYVY", words(false, 16, 0)),
        "Y210" => return ("YUY2", words(false, 10, 6)),
        "AYUV64" => return ("AYUV", words(false, 16, 0)),
        "ARGB64" => return ("ARGB", words(false, 16, 0)),
        "GRAY10_LE16" => return ("GRAY", words(false, 10, 0)),
        "GRAY10_LE32" => return ("GRAY", Encoding::ThreeIn32),
        "NV12_4L4" | "NV12_32L32" | "NV12_16L32S" | "NV12_8L128" => return ("NV12", Encoding::Bytes),
        "NV12_10LE40_4L4" => return ("NV12", Encoding::Packed10 { big: false }),
        _ => {}
    }
    // Endianness and depth stand at the end.
    for (end, encoding) in [
        ("_10LE32", Encoding::ThreeIn32),
        ("_10LE40", Encoding::Packed10 { big: false }),
        ("_10LE", words(false, 10, 0)),
        ("_10BE", words(true, 10, 0)),
        ("_12LE", words(false, 12, 0)),
        ("_12BE", words(true, 12, 0)),
        ("_16LE", words(false, 16, 0)),
        ("_16BE", words(true, 16, 0)),
        ("12_LE", words(false, 12, 4)),
        ("12_BE", words(true, 12, 4)),
        ("16_LE", words(false, 16, 0)),
        ("16_BE", words(true, 16, 0)),
        ("64_LE", words(false, 16, 0)),
        ("64_BE", words(true, 16, 0)),
    ] {
        match (name.strip_suffix(end), encoding) {
            (Some("P010"), Encoding::Words { big, .. }) => return ("NV12", words(big, 10, 6)),
            (Some("P0"), encoding) => return ("NV12", encoding),
            (Some("Y2"), encoding) => return ("YUY2", encoding),
            (Some(stem), encoding) => return (stem, encoding),
            (None, _) => {}
        }
    }
    (name, Encoding::Bytes)
}

/// Returns the samples of a format; `None` if they are not known here.
pub fn samples(name: &str) -> Option<Samples> {
    let (stem, encoding) = split(name);
    let components = match stem {
        "I420" | "A420" => planar([0, 1, 2], (1, 1)),
        "YV12" => planar([0, 2, 1], (1, 1)),
        "Y42B" | "I422" | "A422" => planar([0, 1, 2], (1, 0)),
        "Y41B" => planar([0, 1, 2], (2, 0)),
        "YUV9" => planar([0, 1, 2], (2, 2)),
        "YVU9" => planar([0, 2, 1], (2, 2)),
        "Y444" | "A444" | "RGBP" => planar([0, 1, 2], (0, 0)),
        "BGRP" => planar([2, 1, 0], (0, 0)),
        "GBR" | "GBRA" => planar([2, 0, 1], (0, 0)),
        "NV12" | "AV12" => semi(0, 1, (1, 1)),
        "NV21" => semi(1, 0, (1, 1)),
        "NV16" => semi(0, 1, (1, 0)),
        "NV61" => semi(1, 0, (1, 0)),
        "NV24" => semi(0, 1, (0, 0)),
        "YUY2" => pairs(0, 1, 3),
        "YVYU" => pairs(0, 3, 1),
        "UYVY" => pairs(1, 0, 2),
        "VYUY" => pairs(1, 2, 0),
        "IYU1" => [component(0, 0, 1, (0, 0)), component(0, 0, 6, (2, 0)), component(0, 3, 6, (2, 0))],
        "AYUV" | "xRGB" | "ARGB" => packed([1, 2, 3], 4),
        "Y4" => packed([1, 0, 2], 4),
        "VUYA" | "BGRx" | "BGRA" => packed([2, 1, 0], 4),
        "RGBx" | "RGBA" => packed([0, 1, 2], 4),
        "RBGA" => packed([0, 2, 1], 4),
        "xBGR" | "ABGR" => packed([3, 2, 1], 4),
        "RGB" | "v308" => packed([0, 1, 2], 3),
        "BGR" => packed([2, 1, 0], 3),
        "IYU2" => packed([1, 0, 2], 3),
        "GRAY" | "GRAY8" | "RGB8P" | "Y410" | "r210" | "RGB10A2_LE" | "BGR10A2_LE" | "RGB16" | "BGR16"
        | "RGB15" | "BGR15" => packed([0, 0, 0], 1),
        _ => return None,
    };
    Some(Samples { encoding, components })
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare::video::PixelFormat;

    #[test]
    fn nearly_all_formats_have_samples() {
        let without = PixelFormat::all().map(PixelFormat::name).filter(|name| samples(name).is_none());
        let without: Vec<_> = without.collect();
        assert_eq!(without, ["NV12_64Z32", "NV12_10BE_8L128", "MT2110T", "MT2110R"]);
    }
}
