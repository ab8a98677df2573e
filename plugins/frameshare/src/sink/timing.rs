// SPDX-License-Identifier: MIT OR Apache-2.0

//! Times of frames, on the clock that all processes share.

use crate::times::{Difference, KnownClock, PipelineClock, Running, Times};

/// The place of upstream's times on the clock that all processes share. It does not decide when a
/// frame is published: `GstBaseSink` and `connection.rs` wait.
#[derive(Default)]
pub(super) struct Timing {
    clock: KnownClock,
    /// Time mapping without a pipeline clock: the first frame is due on arrival.
    clockless: Option<Difference>,
    /// Delay of the stream in ns because the sink waited for readers.
    delay: i128,
}

impl Timing {
    /// The delay of the stream in ns because the sink waited for readers.
    pub(super) fn delay(&self) -> i128 {
        self.delay
    }

    /// Delays the stream by so many ns more.
    pub(super) fn delay_by(&mut self, more: i128) {
        self.delay += more;
    }

    /// Ends the delay of the stream, but for so many ns.
    pub(super) fn end_delay(&mut self, left: i128) {
        self.delay = left;
    }

    /// Returns whether a frame without a pipeline clock has started the timeline.
    pub(super) fn has_started_without_clock(&self) -> bool {
        self.clockless.is_some()
    }

    /// Returns the running time in ns now, if the pipeline has a clock and a base time.
    pub(super) fn running_time(
        &mut self,
        clock: &PipelineClock,
        base: Option<gst::ClockTime>,
    ) -> Option<i128> {
        let (difference, base) = (self.clock.difference(clock)?, base?);
        Some(difference.to_clock(frameshare::monotonic_ns()) - i128::from(base.nseconds()))
    }

    /// Converts running times of upstream to the clock that all processes share. `base` is the base
    /// time, and `offset` the time in ns by which all frames are moved.
    pub(super) fn published(
        &mut self,
        running: Running,
        clock: &PipelineClock,
        base: Option<gst::ClockTime>,
        offset: i64,
    ) -> Times {
        let (difference, base) = match (self.clock.difference(clock), base) {
            (Some(difference), Some(base)) => {
                (difference, i128::from(base.nseconds()) + i128::from(offset) + self.delay)
            }
            _ => {
                let now = frameshare::monotonic_ns();
                let first = u64::try_from(running.pts.or(running.dts).unwrap_or(0)).unwrap_or(0);
                let first = gst::ClockTime::from_nseconds(first);
                let difference = *self.clockless.get_or_insert_with(|| Difference::between(first, now));
                (difference, self.delay)
            }
        };
        running.published(difference, base)
    }
}
