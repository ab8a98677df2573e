// SPDX-License-Identifier: MIT OR Apache-2.0

//! Color models of pixel formats.

/// The color model of a pixel format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColorModel {
    /// Luma and chroma.
    Yuv,
    /// Red, green, blue; or a palette of them.
    Rgb,
    /// Luma only.
    Gray,
}
