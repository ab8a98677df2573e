// SPDX-License-Identifier: MIT OR Apache-2.0

//! Dependencies between frames.

/// Dependency of a frame on those before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Independent of other frames, as all raw video and audio. The exporter keeps no copy of it.
    #[default]
    Whole,
    /// The first unit of a group of pictures of an encoded stream: decoding can start here.
    Key,
    /// Cannot be decoded without the units before it, back to the last key unit.
    Delta,
}
