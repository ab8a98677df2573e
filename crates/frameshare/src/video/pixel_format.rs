// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pixel formats by name.

use super::{
    color_model::ColorModel,
    error::VideoError,
    shape::Shape,
    table::{self, Row},
};
use std::{fmt, str::FromStr};

/// A pixel format of raw video, such as `NV12`.
#[derive(Clone, Copy)]
pub struct PixelFormat(&'static Row);

impl PixelFormat {
    /// Returns all known formats.
    pub fn all() -> impl Iterator<Item = Self> {
        table::ROWS.iter().map(Self)
    }

    /// The name, as in GStreamer's caps.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The color model.
    pub fn color_model(self) -> ColorModel {
        self.0.color
    }

    /// Number of planes.
    pub fn plane_count(self) -> usize {
        self.0.planes.len()
    }

    pub(super) fn shapes(self) -> &'static [Shape] {
        self.0.planes
    }
}

impl FromStr for PixelFormat {
    type Err = VideoError;

    /// Returns the format of a name; upper and lower case differ.
    fn from_str(name: &str) -> Result<Self, VideoError> {
        if let Some(name) = table::WITHOUT_PLANES.iter().find(|found| **found == name) {
            return Err(VideoError::NoPlanes { name });
        }
        let found = Self::all().find(|format| format.name() == name);
        found.ok_or_else(|| VideoError::UnknownFormat { name: name.to_owned() })
    }
}

impl PartialEq for PixelFormat {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for PixelFormat {}

impl fmt::Debug for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
