// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conversion of the exporter's timestamps to running time.

use super::settings::{FrameshareSrcPolicy, Settings};
use crate::{events::Timeline, time::Difference};

/// Returns the maximum latency that the granted credit allows: the duration of the frame that
/// downstream synchronizes, and of those that wait behind it. None if the frame rate is unknown.
pub(super) fn longest(
    settings: &Settings,
    credit: u32,
    frame: Option<gst::ClockTime>,
) -> Option<gst::ClockTime> {
    let frame = frame.filter(|frame| !frame.is_zero())?;
    let queue = match (settings.policy, settings.max_queued) {
        (FrameshareSrcPolicy::Latest, 0) => frameshare::automatic_queue(Some(frame.nseconds())),
        (FrameshareSrcPolicy::Latest, queue) => queue,
        (FrameshareSrcPolicy::Lossless, _) => credit,
    };
    // The frame that would use the last credit is copied, and released at once.
    let frames = queue.saturating_add(1).min(credit.checked_sub(1)?);
    let longest = frame.checked_mul(frames.into()).filter(|longest| !longest.is_zero())?;
    Some(longest.max(settings.latency))
}

/// Conversion from `CLOCK_MONOTONIC` to running time, as of one moment, or to the exporter's
/// timestamps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RunningTime {
    difference: Difference,
    base: gst::ClockTime,
    exporters: Option<Timeline>,
}

impl RunningTime {
    /// Returns the conversion for a pipeline with this clock difference and base time.
    pub fn new(difference: Difference, base: gst::ClockTime) -> Self {
        Self { difference, base, exporters: None }
    }

    /// Returns the conversion to the exporter's timestamps, which are not clipped.
    pub fn of_exporter(timeline: Timeline) -> Self {
        Self { exporters: Some(timeline), ..Self::default() }
    }

    /// Returns whether the times are those of this pipeline.
    pub fn is_live(&self) -> bool {
        self.exporters.is_none()
    }

    /// Returns the running time of a moment; 0 for one before the pipeline started.
    pub fn of(&self, monotonic: u64) -> gst::ClockTime {
        from_i128(self.signed(monotonic))
    }

    /// Returns the running time and duration of a frame, clipped to the start of the pipeline. A
    /// frame entirely before the start gets time 0 and no duration.
    pub fn clip(&self, pts: u64, duration: Option<u64>) -> (gst::ClockTime, Option<gst::ClockTime>) {
        let start = self.signed(pts);
        if let Some(timeline) = &self.exporters {
            return (from_i128(start), duration.map(|duration| from_i128(timeline.duration(duration))));
        }
        let duration = duration.map(i128::from);
        let left = if start >= 0 { duration } else { duration.map(|d| d + start).filter(|d| *d > 0) };
        (from_i128(start), left.map(from_i128))
    }

    fn signed(&self, monotonic: u64) -> i128 {
        match &self.exporters {
            Some(timeline) => timeline.position(monotonic),
            None => self.difference.to_clock(monotonic) - i128::from(self.base.nseconds()),
        }
    }
}

/// Returns the nearest valid buffer time.
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
    fn frame_after_start_keeps_duration() {
        let (pts, duration) = started_at_10_s().clip(12_000_000_000, Some(40));
        assert_eq!(pts, gst::ClockTime::from_seconds(2));
        assert_eq!(duration, Some(gst::ClockTime::from_nseconds(40)));
    }

    #[test]
    fn frame_before_start_is_clipped() {
        let time = started_at_10_s();
        let (pts, duration) = time.clip(9_999_999_990, Some(40));
        assert_eq!((pts, duration), (gst::ClockTime::ZERO, Some(gst::ClockTime::from_nseconds(30))));
        let (pts, duration) = time.clip(5_000_000_000, Some(40));
        assert_eq!((pts, duration), (gst::ClockTime::ZERO, None));
        assert_eq!(time.of(0), gst::ClockTime::ZERO);
    }

    #[test]
    fn extreme_times_are_clamped() {
        let (pts, duration) = started_at_10_s().clip(u64::MAX - 1, Some(u64::MAX - 1));
        assert!(pts > gst::ClockTime::from_seconds(1));
        assert!(duration.is_some());
    }

    #[test]
    fn default_credit_covers_latency_of_a_synchronized_sink() {
        let settings = Settings::default();
        let sink = settings.latency + gst::ClockTime::from_mseconds(20);
        for rate in [1, 24, 25, 30, 50, 60, 72, 75, 90, 100, 120, 144, 240, 280] {
            let period = gst::ClockTime::from_nseconds(1_000_000_000 / rate);
            let credit = frameshare::automatic_credit(Some(period.nseconds()));
            let longest = longest(&settings, credit, Some(period)).unwrap();
            assert!(longest >= sink, "{longest} at {rate} frames a second");
            assert!(rate > 60 || credit == 4, "{credit} at {rate}");
        }
        // Without the adaption: the negative control.
        let period = gst::ClockTime::from_nseconds(1_000_000_000 / 75);
        assert!(longest(&settings, 4, Some(period)).unwrap() < sink);
        assert_eq!(longest(&settings, 4, None), None);
        assert_eq!(longest(&settings, 0, Some(period)), None);
        let mut queue = settings.clone();
        queue.max_queued = 1;
        assert_eq!(longest(&queue, 16, Some(sink)), Some(sink * 2));
        queue.policy = FrameshareSrcPolicy::Lossless;
        assert_eq!(longest(&queue, 16, Some(sink)), Some(sink * 15));
    }
}
