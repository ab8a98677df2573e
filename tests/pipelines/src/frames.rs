// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames of a test: content by stream and number.

use crate::Arrival;
use frameshare_tests::content;

const WIDTH: usize = 64;
/// The usual caps.
pub const CAPS: &str =
    "video/x-raw, format=(string)GRAY8, width=(int)64, height=(int)48, framerate=(fraction)25/1";
/// Size in bytes of a frame in the usual caps.
pub const SIZE: usize = WIDTH * 48;

/// Returns the bytes of a frame: two frames of any streams agree in a few places at most.
pub fn frame(stream: usize, number: u64, size: usize) -> Vec<u8> {
    content::bytes((stream as u64 + 1) << 32 | number, size)
}

/// Checks that these are frames of this stream, whole, in order, and every gap counted; returns
/// their numbers.
pub fn check(stream: usize, arrivals: &[Arrival]) -> Vec<u64> {
    let mut expected = None;
    for arrival in arrivals {
        assert!(
            arrival.bytes == frame(stream, arrival.sequence, SIZE),
            "frame {} of stream {stream} has other content",
            arrival.sequence
        );
        if let Some(expected) = expected {
            assert_eq!(arrival.sequence, expected + arrival.lost_before, "a gap in stream {stream}");
        }
        expected = Some(arrival.sequence + 1);
    }
    arrivals.iter().map(|arrival| arrival.sequence).collect()
}
