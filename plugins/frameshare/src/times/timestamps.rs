// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conversion of the exporter's times to timestamps.

use super::{clock::Difference, timeline::Timeline};

/// Conversion from `CLOCK_MONOTONIC` to the timestamps of a live source, as of one moment, or to
/// those of the exporter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timestamps {
    difference: Difference,
    base: gst::ClockTime,
    /// Time in ns that timestamps of a live source are ahead of the running time.
    lead: i128,
    exporters: Option<Timeline>,
}

impl Timestamps {
    /// Returns the conversion to running time, for a pipeline with this clock difference and base
    /// time.
    pub fn new(difference: Difference, base: gst::ClockTime) -> Self {
        Self { difference, base, ..Self::default() }
    }

    /// Returns the conversion to timestamps that are `lead` ns ahead of the running time.
    pub fn ahead_by(self, lead: i128) -> Self {
        Self { lead, ..self }
    }

    /// Returns the conversion to the exporter's timestamps.
    pub fn of_exporter(timeline: Timeline) -> Self {
        Self { exporters: Some(timeline), ..Self::default() }
    }

    /// Returns whether another conversion has the same base time.
    pub fn has_base_of(&self, other: &Self) -> bool {
        self.base == other.base
    }

    /// Returns the time of `CLOCK_MONOTONIC` at which the running time is 0.
    pub fn start(&self) -> i128 {
        -self.signed(0)
    }

    /// Returns whether the times are those of this pipeline.
    pub fn is_live(&self) -> bool {
        self.exporters.is_none()
    }

    /// Returns the timestamp of a moment; none if it would be negative.
    pub fn of(&self, monotonic: u64) -> Option<gst::ClockTime> {
        let time = self.signed(monotonic);
        (time >= 0).then(|| nearest(time))
    }

    /// Returns a duration in timestamps.
    pub fn duration(&self, duration: u64) -> Option<gst::ClockTime> {
        let scaled = self.exporters.map_or(duration.into(), |timeline| timeline.duration(duration));
        (duration != u64::MAX).then(|| nearest(scaled))
    }

    /// Returns the timestamp and the duration of a gap, without the part before time 0; none if no
    /// part is left.
    pub fn of_gap(
        &self,
        pts: u64,
        duration: Option<u64>,
    ) -> Option<(gst::ClockTime, Option<gst::ClockTime>)> {
        let start = self.signed(pts);
        let duration = duration.and_then(|duration| self.duration(duration));
        if start >= 0 {
            return Some((nearest(start), duration));
        }
        let left = i128::from(duration?.nseconds()) + start;
        (left > 0).then(|| (gst::ClockTime::ZERO, Some(nearest(left))))
    }

    /// Returns the timestamp of a moment in ns.
    pub fn signed(&self, monotonic: u64) -> i128 {
        match &self.exporters {
            Some(timeline) => timeline.position(monotonic),
            None => self.difference.to_clock(monotonic) - i128::from(self.base.nseconds()) + self.lead,
        }
    }
}

/// Returns the sum of two times, or the last valid buffer time if that is less: peers and files may
/// say any times, and the operator of `ClockTime` panics or overflows.
pub(crate) fn sum(one: gst::ClockTime, other: gst::ClockTime) -> gst::ClockTime {
    nearest(i128::from(one.nseconds()) + i128::from(other.nseconds()))
}

/// Returns the nearest valid buffer time.
pub(crate) fn nearest(time: i128) -> gst::ClockTime {
    gst::ClockTime::from_nseconds(time.clamp(0, i128::from(u64::MAX - 1)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started_at_10_s(lead: i128) -> Timestamps {
        let clock = gst::ClockTime::from_seconds(110);
        let monotonic = 60_000_000_000; // the pipeline's clock is 50 s ahead
        Timestamps::new(Difference::between(clock, monotonic), gst::ClockTime::from_seconds(60))
            .ahead_by(lead)
    }

    #[test]
    fn time_before_start_is_none_unless_moved() {
        let time = started_at_10_s(0);
        assert_eq!(time.of(12_000_000_000), Some(gst::ClockTime::from_seconds(2)));
        assert_eq!(time.of(9_999_999_999), None);
        let moved = started_at_10_s(3_000_000_000);
        assert_eq!(moved.of(9_000_000_000), Some(gst::ClockTime::from_seconds(2)));
        assert_eq!(moved.of(6_000_000_000), None);
    }

    #[test]
    fn gap_is_clipped_to_start() {
        let time = started_at_10_s(0);
        let ns = gst::ClockTime::from_nseconds;
        assert_eq!(time.of_gap(12_000_000_000, Some(40)), Some((ns(2_000_000_000), Some(ns(40)))));
        assert_eq!(time.of_gap(12_000_000_000, None), Some((ns(2_000_000_000), None)));
        assert_eq!(time.of_gap(9_999_999_990, Some(40)), Some((ns(0), Some(ns(30)))));
        assert_eq!(time.of_gap(5_000_000_000, Some(40)), None);
        assert_eq!(time.of_gap(5_000_000_000, None), None);
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let time = started_at_10_s(0);
        assert!(time.of(u64::MAX - 1) > Some(gst::ClockTime::from_seconds(1)));
        assert_eq!(time.duration(u64::MAX), None);
        assert!(time.of_gap(u64::MAX - 1, Some(u64::MAX - 1)).is_some());
        let (most, one) = (gst::ClockTime::MAX, gst::ClockTime::NSECOND);
        assert_eq!([sum(most, one), sum(most, most), sum(most - one, one)], [most; 3]);
    }
}
