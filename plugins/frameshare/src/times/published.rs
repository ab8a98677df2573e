// SPDX-License-Identifier: MIT OR Apache-2.0

//! Published times: what a pipeline's timestamps are on `CLOCK_MONOTONIC`.

use super::clock::Difference;
use gst::{ClockTime, FormattedSegment};

/// Presentation and decoding time in ns of `CLOCK_MONOTONIC`, and duration in ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub pts: Option<u64>,
    pub dts: Option<u64>,
    pub duration: Option<u64>,
    /// Time of the clock at running time 0.
    pub origin: u64,
}

/// Running times in ns of a buffer; they may be before the segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Running {
    pub pts: Option<i128>,
    pub dts: Option<i128>,
    duration: Option<u64>,
}

impl Running {
    /// The running times of a buffer in a segment. In reverse playback its presentation starts at
    /// its end.
    pub fn of(
        segment: &FormattedSegment<ClockTime>,
        pts: Option<ClockTime>,
        dts: Option<ClockTime>,
        duration: Option<ClockTime>,
    ) -> Self {
        let running = |time: ClockTime| match segment.to_running_time_full(time)? {
            gst::Signed::Positive(time) => Some(i128::from(time.nseconds())),
            gst::Signed::Negative(time) => Some(-i128::from(time.nseconds())),
        };
        let shown = match duration {
            Some(duration) if segment.rate() < 0.0 => pts.map(|pts| super::sum(pts, duration)),
            _ => pts,
        };
        let rate = segment.rate().abs();
        Self {
            pts: shown.and_then(running),
            dts: dts.and_then(running),
            duration: duration.map(|duration| (duration.nseconds() as f64 / rate) as u64),
        }
    }

    /// The published times, in a pipeline whose running time is 0 at `base` ns of its clock.
    pub fn published(self, difference: Difference, base: i128) -> Times {
        Times {
            origin: difference.to_monotonic(base),
            pts: self.pts.map(|time| difference.to_monotonic(time + base)),
            dts: self.dts.map(|time| difference.to_monotonic(time + base)),
            duration: self.duration,
        }
    }
}
