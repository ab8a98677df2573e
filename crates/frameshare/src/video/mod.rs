// SPDX-License-Identifier: MIT OR Apache-2.0

//! Raw video: formats, parsed from the caps of a stream, and the planes of their frames.
//!
//! The table of formats has those of GStreamer 1.22 and 1.26, and is tested against them. An
//! unknown format, an invalid field and a layout that exceeds its frame are errors
//! ([`VideoError`]), never guesses.

mod caps;
mod color;
mod color_model;
mod error;
mod format;
mod layout;
mod pixel_format;
mod shape;
mod table;

/// Returns the duration of a frame in ns, from the text of caps that name a frame rate.
pub(crate) fn period_ns(caps: &str) -> Option<u64> {
    let (frames, seconds) = caps::Caps::parse(caps).fraction("framerate")?;
    (u64::from(seconds) * 1_000_000_000).checked_div(frames.into())
}

pub use color::{ColorMatrix, ColorPrimaries, ColorRange, Colorimetry, Transfer};
pub use color_model::ColorModel;
pub use error::VideoError;
pub use format::{Fraction, Interlacing, VideoFormat};
pub use layout::PlaneLayout;
pub use pixel_format::PixelFormat;
pub use shape::Tile;

/// Bit of [`Descriptor::flags`](crate::Descriptor): the frame's image is a part of its memory,
/// which only its metadata names. `framesharesink` sets it for buffers with a `GstVideoCropMeta`.
pub const CROPPED: u64 = 1 << 63;
