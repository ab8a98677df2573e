// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pixels of raw video: from the memory of a frame to RGB, and back for test patterns.
//!
//! Matrix and range of the colorimetry are respected. Primaries and transfer function are left as
//! they are, alpha is ignored, and subsampled chroma is repeated.

mod color;
mod formats;
mod image;
mod samples;
mod store;

pub use image::{Image, ImageError};
pub use store::{can_store, store};

#[cfg(test)]
mod tests;
