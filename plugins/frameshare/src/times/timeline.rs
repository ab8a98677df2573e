// SPDX-License-Identifier: MIT OR Apache-2.0

//! The exporter's segment, and its place on `CLOCK_MONOTONIC`.
//!
//! Frames carry times of the clock. A reader that is not live turns them back into the exporter's
//! timestamps.

use frameshare::event::Segment;
use gst::{ClockTime, FormattedSegment};
use serde::{Deserialize, Serialize};
use std::ops::Deref;

/// A segment that is played forward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Timeline(Segment);

impl Deref for Timeline {
    type Target = Segment;

    fn deref(&self) -> &Segment {
        &self.0
    }
}

impl Timeline {
    /// Returns the timeline of a segment; none for one that is played backward, or with times or a
    /// rate beyond the limits.
    pub fn of(segment: &FormattedSegment<ClockTime>, origin: u64) -> Option<Self> {
        let ns = |time: Option<ClockTime>| time.map_or(0, ClockTime::nseconds);
        let timeline = Self(Segment {
            origin,
            rate: segment.rate(),
            applied_rate: segment.applied_rate(),
            start: ns(segment.start()),
            // Some sources give the end of time.
            stop: segment.stop().map(ClockTime::nseconds).filter(|stop| *stop <= Segment::MAX_TIME),
            offset: ns(segment.offset()),
            time: ns(segment.time()),
            base: ns(segment.base()),
        });
        timeline.is_valid().then_some(timeline)
    }

    /// Returns the timeline of an exporter that names none: its first frame is at time 0.
    pub fn from(first: u64) -> Self {
        let origin = first.min(Segment::MAX_TIME);
        let (rate, applied_rate) = (1.0, 1.0);
        Self(Segment { origin, rate, applied_rate, start: 0, stop: None, offset: 0, time: 0, base: 0 })
    }

    /// Returns the same segment at another place on the clock.
    pub fn at(self, origin: u64) -> Self {
        Self(Segment { origin, ..self.0 })
    }

    /// Returns the exporter's running time at a moment of `CLOCK_MONOTONIC`.
    pub fn running(&self, monotonic: u64) -> i128 {
        i128::from(monotonic) - i128::from(self.origin)
    }

    /// Returns the exporter's timestamp at a moment of `CLOCK_MONOTONIC`.
    pub fn position(&self, monotonic: u64) -> i128 {
        self.timestamp(monotonic)
    }

    /// Returns the duration of a frame in the exporter's timestamps, from that in running time.
    pub fn duration(&self, running: u64) -> i128 {
        self.scaled(running.into())
    }

    fn scaled(&self, running: i128) -> i128 {
        if self.rate == 1.0 { running } else { (running as f64 * self.rate) as i128 }
    }

    /// Returns the segment for a reader whose running time is `behind` ns less than the exporter's.
    pub fn segment(&self, behind: i128) -> FormattedSegment<ClockTime> {
        let mut segment = FormattedSegment::<ClockTime>::new();
        segment.set_rate(self.rate);
        segment.set_applied_rate(self.applied_rate);
        let start = ClockTime::from_nseconds(self.start);
        segment.set_start(start);
        segment.set_stop(self.stop.map(ClockTime::from_nseconds));
        segment.set_position(start);
        segment.set_offset(ClockTime::from_nseconds(self.offset));
        segment.set_time(ClockTime::from_nseconds(self.time));
        // In the order in which gst_segment_offset_running_time() does it: a base is not negative.
        let base = i128::from(self.base) - behind;
        let nanoseconds =
            |time: i128| ClockTime::from_nseconds(u64::try_from(time).unwrap_or(0).min(Segment::MAX_TIME));
        segment.set_base(nanoseconds(base));
        if base < 0 {
            segment.set_offset(nanoseconds(i128::from(self.offset) + self.scaled(-base)));
        }
        segment
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(rate: f64) -> FormattedSegment<ClockTime> {
        let mut segment = FormattedSegment::<ClockTime>::new();
        segment.set_rate(rate);
        segment.set_start(ClockTime::from_seconds(10));
        segment.set_time(ClockTime::from_seconds(3));
        segment.set_base(ClockTime::from_seconds(5));
        segment
    }

    #[test]
    fn timestamps_return_from_the_clock() {
        gst::init().unwrap();
        for rate in [1.0, 2.0, 0.5] {
            let segment = segment(rate);
            let timeline = Timeline::of(&segment, 1_000_000_000_000).unwrap();
            for seconds in [10, 11, 70] {
                let pts = ClockTime::from_seconds(seconds);
                let running = segment.to_running_time(pts).unwrap();
                let monotonic = 1_000_000_000_000 + running.nseconds();
                assert_eq!(timeline.position(monotonic), i128::from(pts.nseconds()), "rate {rate}");
                // Readers that join at this frame begin at running time 0, with its stream time.
                let own = timeline.segment(running.nseconds().into());
                assert_eq!(own.to_running_time(pts), Some(ClockTime::ZERO), "rate {rate}");
                assert_eq!(own.to_stream_time(pts), segment.to_stream_time(pts));
                let later = timeline.segment(-1_000_000_000);
                assert_eq!(later.to_running_time(pts), Some(running + ClockTime::SECOND));
            }
        }
    }

    #[test]
    fn impossible_timelines_are_refused() {
        gst::init().unwrap();
        assert_eq!(Timeline::of(&segment(-1.0), 0), None);
        let Timeline(good) = Timeline::of(&segment(1.0), 0).unwrap();
        for bad in [
            Segment { rate: f64::NAN, ..good },
            Segment { rate: 0.0, ..good },
            Segment { applied_rate: f64::INFINITY, ..good },
            Segment { origin: u64::MAX, ..good },
            Segment { base: u64::MAX, ..good },
        ] {
            assert!(!bad.is_valid(), "{bad:?}");
        }
        // The most that a peer can send overflows nothing.
        let most =
            Segment { origin: Segment::MAX_TIME, rate: Segment::MAX_RATE, base: Segment::MAX_TIME, ..good };
        let most = Timeline(most);
        most.segment(most.position(u64::MAX));
        most.segment(-i128::from(u64::MAX));
    }
}
