// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conversion between pipeline time and `CLOCK_MONOTONIC`.
//!
//! Published times are of `CLOCK_MONOTONIC`, the one clock that all processes of a machine share. A
//! pipeline's clock may be another and may drift against it, so the difference is sampled anew for
//! every frame.

use crate::sync::{Cached, Versioned};
use frameshare::monotonic_ns;
use gst::prelude::*;
use std::sync::Arc;

/// Reading three clocks takes less than this, unless the thread is preempted in between.
const UNDISTURBED_NS: u64 = 20_000;

/// The clock of an element's pipeline, once it has one. Set from any thread; the streaming thread
/// reads it through a [`KnownClock`].
#[derive(Debug, Default)]
pub(crate) struct PipelineClock(Versioned<Option<Arc<Clock>>>);

impl PipelineClock {
    /// Sets the clock that the pipeline has selected.
    pub(crate) fn set(&self, clock: Option<&gst::Clock>) {
        let clock = clock.map(|clock| Arc::new(Clock::new(clock)));
        let last = self.0.change(|present| std::mem::replace(present, clock));
        drop(last);
    }
}

/// The streaming thread's copy of a [`PipelineClock`].
#[derive(Debug, Default)]
pub(crate) struct KnownClock(Cached<Option<Arc<Clock>>>);

impl KnownClock {
    /// Samples the difference of the present clock to `CLOCK_MONOTONIC` now. Calls the clock: not
    /// to be called with a lock held.
    pub(crate) fn difference(&mut self, present: &PipelineClock) -> Option<Difference> {
        self.0.refresh(&present.0).as_ref().map(|clock| clock.difference())
    }
}

/// A clock, and its properties that do not change from frame to frame.
#[derive(Debug)]
struct Clock {
    clock: gst::Clock,
    /// It reads `CLOCK_MONOTONIC` unless it is calibrated, as a pipeline's clock usually does.
    is_monotonic: bool,
}

impl Clock {
    /// Determines the clock's type, which takes too long for every frame.
    fn new(clock: &gst::Clock) -> Self {
        let is_monotonic = clock.type_() == gst::SystemClock::static_type()
            && clock.property::<gst::ClockType>("clock-type") == gst::ClockType::Monotonic;
        Self { clock: clock.clone(), is_monotonic }
    }

    fn difference(&self) -> Difference {
        if self.is_monotonic && !self.is_calibrated() {
            return Difference::default();
        }
        let read = || {
            let before = monotonic_ns();
            let time = self.clock.time();
            let after = monotonic_ns();
            // The clock was read between the two: the middle is off by at most half the distance.
            (after - before, Difference::between(time, before.midpoint(after)))
        };
        // A thread that is preempted in between reads wrong values; that seldom happens twice.
        let first = read();
        if first.0 < UNDISTURBED_NS {
            first.1
        } else {
            std::cmp::min_by_key(first, read(), |(took, _)| *took).1
        }
    }

    fn is_calibrated(&self) -> bool {
        let (internal, external, numerator, denominator) = self.clock.calibration();
        internal != external || numerator != denominator
    }
}

/// Difference of a clock to `CLOCK_MONOTONIC` at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// ns to add to the pipeline clock's time to get `CLOCK_MONOTONIC`.
    ahead: i128,
}

impl Difference {
    /// The difference between a pipeline clock that reads `time` and a monotonic clock that reads
    /// `monotonic`.
    pub(crate) fn between(time: gst::ClockTime, monotonic: u64) -> Self {
        Self { ahead: i128::from(monotonic) - i128::from(time.nseconds()) }
    }

    /// Returns the time of `CLOCK_MONOTONIC` at which the pipeline clock reads `time`; 0 if that is
    /// before its start.
    pub(crate) fn to_monotonic(self, time: i128) -> u64 {
        clamp(time + self.ahead)
    }

    /// Returns the pipeline clock's time at `monotonic`; it may be before its start.
    pub(crate) fn to_clock(self, monotonic: u64) -> i128 {
        i128::from(monotonic) - self.ahead
    }
}

/// Returns the nearest time that a descriptor or a buffer can carry: all ones mean none in both.
fn clamp(time: i128) -> u64 {
    time.clamp(0, i128::from(u64::MAX - 1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_goes_there_and_back() {
        let difference = Difference::between(gst::ClockTime::from_seconds(5), 2_000_000_000);
        assert_eq!(difference.to_monotonic(6_000_000_000), 3_000_000_000);
        assert_eq!(difference.to_clock(3_000_000_000), 6_000_000_000);
    }

    #[test]
    fn time_before_clock_start_is_clamped_to_start() {
        let difference = Difference::between(gst::ClockTime::from_seconds(5), 2_000_000_000);
        assert_eq!(difference.to_monotonic(1_000_000_000), 0);
        assert_eq!(difference.to_clock(0), 3_000_000_000);
        assert_eq!(Difference::between(gst::ClockTime::ZERO, 0).to_monotonic(i128::MAX / 2), u64::MAX - 1);
    }

    #[test]
    fn the_system_clock_of_gstreamer_is_sampled_within_a_millisecond() {
        gst::init().unwrap();
        let clock = gst::SystemClock::obtain();
        let difference = Clock::new(&clock).difference();
        assert_eq!(difference, Difference::default(), "it is the monotonic clock");
        let before = monotonic_ns();
        let monotonic = difference.to_monotonic(i128::from(clock.time().nseconds()));
        assert!((before..=monotonic_ns()).contains(&monotonic));
    }

    #[test]
    fn other_clocks_are_measured() {
        gst::init().unwrap();
        let clock = || glib::Object::builder::<gst::SystemClock>();
        let realtime = clock().property("clock-type", gst::ClockType::Realtime).build();
        let calibrated = clock().build();
        let clocks = [realtime, calibrated.clone()].map(|clock| Clock::new(clock.upcast_ref()));
        // A pipeline's clock may be calibrated at any time.
        let internal = calibrated.internal_time();
        calibrated.set_calibration(internal, gst::ClockTime::SECOND, 101, 100);
        for clock in clocks {
            let difference = clock.difference();
            assert_ne!(difference, Difference::default());
            let before = monotonic_ns();
            let monotonic = difference.to_monotonic(i128::from(clock.clock.time().nseconds()));
            assert!((before - 20_000_000..monotonic_ns() + 20_000_000).contains(&monotonic));
        }
    }
}
