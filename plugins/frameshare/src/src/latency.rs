// SPDX-License-Identifier: MIT OR Apache-2.0

//! The latency that the source reports.

use super::settings::{FrameshareSrcPolicy, Settings};

/// Returns the maximum latency that the granted credit allows: the duration of the frame that
/// downstream synchronizes, and of those that wait behind it. None if the frame rate is unknown.
pub(super) fn longest(
    settings: &Settings,
    credit: u32,
    frame: Option<gst::ClockTime>,
) -> Option<gst::ClockTime> {
    let frame = frame.filter(|frame| !frame.is_zero())?;
    let queue = match (settings.policy, settings.config.max_queued) {
        (FrameshareSrcPolicy::Latest, 0) => frameshare::automatic_queue(Some(frame.nseconds()), 0),
        (FrameshareSrcPolicy::Latest, queue) => queue,
        (FrameshareSrcPolicy::Lossless, _) => credit,
    };
    // The frame that would use the last credit is copied, and released at once.
    let frames = queue.saturating_add(1).min(credit.checked_sub(1)?);
    let longest = frame.checked_mul(frames.into()).filter(|longest| !longest.is_zero())?;
    Some(longest.max(settings.latency))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_credit_covers_latency_of_a_synchronized_sink() {
        let settings = Settings::default();
        let sink = settings.latency + gst::ClockTime::from_mseconds(20);
        for rate in [1, 24, 25, 30, 50, 60, 72, 75, 90, 100, 120, 144, 240, 280] {
            let period = gst::ClockTime::from_nseconds(1_000_000_000 / rate);
            let credit = frameshare::automatic_credit(Some(period.nseconds()), 0);
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
        queue.config.max_queued = 1;
        assert_eq!(longest(&queue, 16, Some(sink)), Some(sink * 2));
        queue.policy = FrameshareSrcPolicy::Lossless;
        assert_eq!(longest(&queue, 16, Some(sink)), Some(sink * 15));
    }
}
