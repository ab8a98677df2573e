// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conversion between RGB and the components of a format.

use frameshare::video::{ColorMatrix, ColorModel, ColorRange, Colorimetry};

/// The meaning of the component values of a format.
#[derive(Clone, Copy, Debug)]
pub struct Color {
    model: ColorModel,
    is_limited: bool,
    /// Weights of red and blue in luma.
    weights: (f32, f32),
}

/// Value 0 and span of a component of a depth in bits.
#[derive(Clone, Copy, Debug)]
struct Scale {
    zero: f32,
    span: f32,
}

impl Color {
    pub fn new(model: ColorModel, colorimetry: Colorimetry) -> Self {
        let weights = match colorimetry.matrix {
            ColorMatrix::Fcc => (0.30, 0.11),
            ColorMatrix::Bt709 => (0.2126, 0.0722),
            ColorMatrix::Smpte240M => (0.212, 0.087),
            ColorMatrix::Bt2020 => (0.2627, 0.0593),
            _ => (0.299, 0.114),
        };
        let is_limited = match colorimetry.range {
            ColorRange::Full => false,
            ColorRange::Limited => true,
            _ => model == ColorModel::Yuv,
        };
        Self { model, is_limited, weights }
    }

    /// Returns the scale of luma, gray, red, green and blue.
    fn luma(&self, depth: u32) -> Scale {
        let unit = (1_u32 << depth) as f32 / 256.0;
        match self.is_limited {
            true => Scale { zero: 16.0 * unit, span: 219.0 * unit },
            false => Scale { zero: 0.0, span: ((1_u32 << depth) - 1) as f32 },
        }
    }

    fn chroma(&self, depth: u32) -> Scale {
        let unit = (1_u32 << depth) as f32 / 256.0;
        let span = if self.is_limited { 224.0 * unit } else { ((1_u32 << depth) - 1) as f32 };
        Scale { zero: 128.0 * unit, span }
    }

    /// Returns red, green and blue of component values of these depths.
    pub fn to_rgb(self, values: [u32; 3], depths: [u32; 3]) -> [u8; 3] {
        let at = |scale: Scale, index: usize| (values[index] as f32 - scale.zero) / scale.span;
        let luma = |index: usize| at(self.luma(depths[index]), index);
        let chroma = |index: usize| at(self.chroma(depths[index]), index);
        match self.model {
            ColorModel::Rgb => [0, 1, 2].map(|index| code(luma(index))),
            ColorModel::Gray => [code(luma(0)); 3],
            ColorModel::Yuv => {
                let (y, (r, b)) = (luma(0), self.weights);
                let (red, blue) = (y + 2.0 * (1.0 - r) * chroma(2), y + 2.0 * (1.0 - b) * chroma(1));
                [red, (y - r * red - b * blue) / (1.0 - r - b), blue].map(code)
            }
        }
    }

    /// Returns the component values of a color.
    pub fn of_rgb(self, rgb: [u8; 3], depths: [u32; 3]) -> [u32; 3] {
        let rgb = rgb.map(|value| f32::from(value) / 255.0);
        let (r, b) = self.weights;
        let y = r * rgb[0] + (1.0 - r - b) * rgb[1] + b * rgb[2];
        let chroma = [(rgb[2] - y) / (2.0 * (1.0 - b)), (rgb[0] - y) / (2.0 * (1.0 - r))];
        let value = |scale: Scale, value: f32, depth: u32| {
            (scale.zero + scale.span * value).round().clamp(0.0, ((1_u32 << depth) - 1) as f32) as u32
        };
        let luma = |index: usize, level: f32| value(self.luma(depths[index]), level, depths[index]);
        match self.model {
            ColorModel::Rgb => [0, 1, 2].map(|index| luma(index, rgb[index])),
            ColorModel::Gray => [0, 1, 2].map(|index| luma(index, y)),
            ColorModel::Yuv => {
                let chroma = [1, 2].map(|at| value(self.chroma(depths[at]), chroma[at - 1], depths[at]));
                [luma(0, y), chroma[0], chroma[1]]
            }
        }
    }
}

/// Returns the code value of 8 bits of a level from 0 to 1.
fn code(level: f32) -> u8 {
    (255.0 * level).round().clamp(0.0, 255.0) as u8
}
