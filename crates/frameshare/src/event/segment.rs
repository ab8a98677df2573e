// SPDX-License-Identifier: MIT OR Apache-2.0

//! The exporter's segment, and its place on `CLOCK_MONOTONIC`.

use serde::{Deserialize, Serialize};

/// A segment that is played forward. Frames carry times of the clock; it turns them into timestamps
/// of the exporter's file or source. All times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Time of `CLOCK_MONOTONIC` at running time 0.
    pub origin: u64,
    /// Timestamps a running time; positive, at most 1,000.
    pub rate: f64,
    /// The rate that the exporter has applied to the content already.
    pub applied_rate: f64,
    /// First timestamp.
    pub start: u64,
    /// End of the timestamps, if it is known; frames may lie behind it.
    pub stop: Option<u64>,
    /// Timestamps from the start on that were skipped.
    pub offset: u64,
    /// Stream time of the start: its position in the medium.
    pub time: u64,
    /// Running time of the start.
    pub base: u64,
}

impl Segment {
    /// Maximum of a time; sums of a few times stay within 64 bits.
    pub const MAX_TIME: u64 = 1 << 61;
    /// Maximum of a rate.
    pub const MAX_RATE: f64 = 1000.0;

    /// Returns the exporter's timestamp at a time of `CLOCK_MONOTONIC`, such as that of a frame.
    pub fn timestamp(&self, monotonic: u64) -> i128 {
        let running = i128::from(monotonic) - i128::from(self.origin) - i128::from(self.base);
        let scaled = if self.rate == 1.0 { running } else { (running as f64 * self.rate) as i128 };
        scaled + i128::from(self.start) + i128::from(self.offset)
    }

    /// Returns the position in the medium, the stream time, at a time of `CLOCK_MONOTONIC`.
    pub fn stream_time(&self, monotonic: u64) -> i128 {
        let inside = self.timestamp(monotonic) - i128::from(self.start);
        let scaled =
            if self.applied_rate == 1.0 { inside } else { (inside as f64 * self.applied_rate) as i128 };
        scaled + i128::from(self.time)
    }

    /// Returns whether times and rates are within the limits.
    pub fn is_valid(&self) -> bool {
        let Self { origin, rate, applied_rate, start, stop, offset, time, base } = *self;
        let is_rate = |rate: f64| rate.is_finite() && rate > 0.0 && rate <= Self::MAX_RATE;
        is_rate(rate)
            && is_rate(applied_rate.abs())
            && [origin, start, offset, time, base].iter().all(|time| *time <= Self::MAX_TIME)
            && stop.is_none_or(|stop| (start..=Self::MAX_TIME).contains(&stop))
    }
}
