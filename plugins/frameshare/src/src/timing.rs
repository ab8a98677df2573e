//! The exporter's times in this pipeline's running time.

use crate::time::Difference;

/// How to get from `CLOCK_MONOTONIC` to running time, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunningTime {
    difference: Difference,
    base: gst::ClockTime,
}

impl RunningTime {
    /// Of a pipeline whose clock differs so and which started at `base`.
    pub fn new(difference: Difference, base: gst::ClockTime) -> Self {
        Self { difference, base }
    }

    /// The running time of a moment; 0 for one before this pipeline started.
    pub fn of(&self, monotonic: u64) -> gst::ClockTime {
        from_i128(self.signed(monotonic))
    }

    /// The running time and duration of a frame, without what lies before this pipeline started. A frame that lies
    /// there altogether comes at once, for no known time.
    pub fn clip(&self, pts: u64, duration: Option<u64>) -> (gst::ClockTime, Option<gst::ClockTime>) {
        let start = self.signed(pts);
        let duration = duration.map(i128::from);
        let left = if start >= 0 { duration } else { duration.map(|d| d + start).filter(|d| *d > 0) };
        (from_i128(start), left.map(from_i128))
    }

    fn signed(&self, monotonic: u64) -> i128 {
        self.difference.to_clock(monotonic) - i128::from(self.base.nseconds())
    }
}

/// The nearest time that a buffer can carry.
fn from_i128(time: i128) -> gst::ClockTime {
    gst::ClockTime::from_nseconds(time.clamp(0, i128::from(u64::MAX - 1)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started_at_10_s() -> RunningTime {
        let clock = gst::ClockTime::from_seconds(110);
        let monotonic = 60_000_000_000; // the pipeline's clock is 50 s ahead
        RunningTime::new(Difference::between(clock, monotonic), gst::ClockTime::from_seconds(60))
    }

    #[test]
    fn a_frame_after_the_start_keeps_its_duration() {
        let (pts, duration) = started_at_10_s().clip(12_000_000_000, Some(40));
        assert_eq!(pts, gst::ClockTime::from_seconds(2));
        assert_eq!(duration, Some(gst::ClockTime::from_nseconds(40)));
    }

    #[test]
    fn what_lies_before_the_start_is_clipped() {
        let time = started_at_10_s();
        let (pts, duration) = time.clip(9_999_999_990, Some(40));
        assert_eq!((pts, duration), (gst::ClockTime::ZERO, Some(gst::ClockTime::from_nseconds(30))));
        let (pts, duration) = time.clip(5_000_000_000, Some(40));
        assert_eq!((pts, duration), (gst::ClockTime::ZERO, None));
        assert_eq!(time.of(0), gst::ClockTime::ZERO);
    }

    #[test]
    fn absurd_times_are_taken() {
        let (pts, duration) = started_at_10_s().clip(u64::MAX - 1, Some(u64::MAX - 1));
        assert!(pts > gst::ClockTime::from_seconds(1));
        assert!(duration.is_some());
    }
}
