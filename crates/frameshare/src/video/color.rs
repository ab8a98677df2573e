// SPDX-License-Identifier: MIT OR Apache-2.0

//! Colorimetry: from the caps, or GStreamer's default for the format and height.

use super::color_model::ColorModel;
use std::fmt;

/// The range of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ColorRange {
    /// Not known.
    Unknown,
    /// All values: 0 to 255 in 8 bits.
    Full,
    /// Video range: luma from 16 to 235 in 8 bits.
    Limited,
}

/// The matrix from RGB to YUV.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names of standards")]
pub enum ColorMatrix {
    Unknown,
    Rgb,
    Fcc,
    Bt709,
    Bt601,
    Smpte240M,
    Bt2020,
}

/// The transfer function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names of standards")]
pub enum Transfer {
    Unknown,
    Gamma10,
    Gamma18,
    Gamma20,
    Gamma22,
    Bt709,
    Smpte240M,
    Srgb,
    Gamma28,
    Log100,
    Log316,
    Bt2020_12,
    AdobeRgb,
    Bt2020_10,
    Smpte2084,
    AribStdB67,
    Bt601,
}

/// The color primaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "names of standards")]
pub enum ColorPrimaries {
    Unknown,
    Bt709,
    Bt470M,
    Bt470Bg,
    Smpte170M,
    Smpte240M,
    Film,
    Bt2020,
    AdobeRgb,
    SmpteSt428,
    SmpteRp431,
    SmpteEg432,
    Ebu3213,
}

/// The meaning of the samples as colors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colorimetry {
    /// Range of the samples.
    pub range: ColorRange,
    /// Matrix from RGB to YUV.
    pub matrix: ColorMatrix,
    /// Transfer function.
    pub transfer: Transfer,
    /// Color primaries.
    pub primaries: ColorPrimaries,
}

// In the order of GStreamer's numbers.
const RANGES: [ColorRange; 3] = [ColorRange::Unknown, ColorRange::Full, ColorRange::Limited];
const MATRICES: [ColorMatrix; 7] = {
    use ColorMatrix::{Bt601, Bt709, Bt2020, Fcc, Rgb, Smpte240M, Unknown};
    [Unknown, Rgb, Fcc, Bt709, Bt601, Smpte240M, Bt2020]
};
const TRANSFERS: [Transfer; 17] = [
    Transfer::Unknown,
    Transfer::Gamma10,
    Transfer::Gamma18,
    Transfer::Gamma20,
    Transfer::Gamma22,
    Transfer::Bt709,
    Transfer::Smpte240M,
    Transfer::Srgb,
    Transfer::Gamma28,
    Transfer::Log100,
    Transfer::Log316,
    Transfer::Bt2020_12,
    Transfer::AdobeRgb,
    Transfer::Bt2020_10,
    Transfer::Smpte2084,
    Transfer::AribStdB67,
    Transfer::Bt601,
];
const PRIMARIES: [ColorPrimaries; 13] = [
    ColorPrimaries::Unknown,
    ColorPrimaries::Bt709,
    ColorPrimaries::Bt470M,
    ColorPrimaries::Bt470Bg,
    ColorPrimaries::Smpte170M,
    ColorPrimaries::Smpte240M,
    ColorPrimaries::Film,
    ColorPrimaries::Bt2020,
    ColorPrimaries::AdobeRgb,
    ColorPrimaries::SmpteSt428,
    ColorPrimaries::SmpteRp431,
    ColorPrimaries::SmpteEg432,
    ColorPrimaries::Ebu3213,
];

/// Names of colorimetries in caps, with GStreamer's numbers.
const NAMES: [(&str, [usize; 4]); 8] = [
    ("bt601", [2, 4, 16, 4]),
    ("bt709", [2, 3, 5, 1]),
    ("smpte240m", [2, 5, 6, 5]),
    ("sRGB", [1, 1, 7, 1]),
    ("bt2020", [2, 6, 11, 7]),
    ("bt2020-10", [2, 6, 13, 7]),
    ("bt2100-pq", [2, 6, 14, 7]),
    ("bt2100-hlg", [2, 6, 15, 7]),
];

/// Rows above which GStreamer takes BT.709 for YUV.
const MAX_SD_HEIGHT: u32 = 576;

impl Colorimetry {
    /// Returns the colorimetry of caps with this field, as GStreamer takes it: a text that is
    /// missing, unknown or does not fit the color model gives the default.
    pub(super) fn of(text: Option<&str>, model: ColorModel, height: u32) -> Self {
        let fits = |color: &Self| match model {
            ColorModel::Yuv => !matches!(color.matrix, ColorMatrix::Unknown | ColorMatrix::Rgb),
            ColorModel::Gray => color.matrix != ColorMatrix::Rgb,
            ColorModel::Rgb => true,
        };
        let found = text.and_then(Self::parse).filter(fits);
        let mut color = found.unwrap_or_else(|| Self::default_of(model, height));
        if model == ColorModel::Rgb {
            color.matrix = ColorMatrix::Rgb;
        }
        color
    }

    fn parse(text: &str) -> Option<Self> {
        if let Some((_, numbers)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Some(Self::numbered(*numbers));
        }
        let mut numbers = text.split(':').map(|number| number.parse::<usize>().ok());
        let all = [numbers.next()??, numbers.next()??, numbers.next()??, numbers.next()??];
        numbers.next().is_none().then(|| Self::numbered(all))
    }

    fn numbered([range, matrix, transfer, primaries]: [usize; 4]) -> Self {
        Self {
            range: *RANGES.get(range).unwrap_or(&ColorRange::Unknown),
            matrix: *MATRICES.get(matrix).unwrap_or(&ColorMatrix::Unknown),
            transfer: *TRANSFERS.get(transfer).unwrap_or(&Transfer::Unknown),
            primaries: *PRIMARIES.get(primaries).unwrap_or(&ColorPrimaries::Unknown),
        }
    }

    fn default_of(model: ColorModel, height: u32) -> Self {
        Self::numbered(match model {
            ColorModel::Yuv if height > MAX_SD_HEIGHT => [2, 3, 5, 1],
            ColorModel::Yuv => [2, 4, 16, 4],
            ColorModel::Rgb => [1, 1, 7, 1],
            ColorModel::Gray => [1, 4, 0, 0],
        })
    }
}

impl fmt::Display for Colorimetry {
    /// Writes the field of caps.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, matrix, transfer, primaries } = *self;
        if let Some((name, _)) = NAMES.iter().find(|(_, numbers)| Self::numbered(*numbers) == *self) {
            return f.write_str(name);
        }
        write!(f, "{}:{}:{}:{}", range as u8, matrix as u8, transfer as u8, primaries as u8)
    }
}
