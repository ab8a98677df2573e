// SPDX-License-Identifier: MIT OR Apache-2.0

//! Encoded units, copied out of their stream.
//!
//! Muxers hold more units than a reader may lease, and a unit is small: the copy lets the exporter
//! have its slot back at once.

use crate::{
    clock::ns_since_1970,
    results::{bytes_of, time_of},
};
use frameshare::{flags, monotonic_ns, reader::Frame};

/// A unit of an encoded stream.
pub struct Unit {
    /// The run of the stream, and the number in it.
    pub session: u64,
    pub sequence: u64,
    /// Capture time in ns since 1970.
    pub time: u64,
    /// Presentation time in ns of CLOCK_MONOTONIC.
    pub pts: u64,
    pub duration: Option<u64>,
    pub is_key: bool,
    pub bytes: Vec<u8>,
}

impl Unit {
    /// Copies a unit; one without a presentation time has that of its publication.
    pub fn of(frame: &Frame) -> Self {
        let descriptor = frame.descriptor();
        let pts = descriptor.pts.unwrap_or(descriptor.published);
        Self {
            session: frame.session(),
            sequence: descriptor.sequence.0,
            time: time_of(frame).unwrap_or_else(|| since_1970(pts)),
            pts,
            duration: descriptor.duration,
            is_key: descriptor.flags & flags::DELTA_UNIT == 0,
            bytes: bytes_of(frame),
        }
    }
}

/// Returns a time of CLOCK_MONOTONIC in ns since 1970.
fn since_1970(time: u64) -> u64 {
    ns_since_1970().saturating_add(time).saturating_sub(monotonic_ns())
}
