//! Pipeline time and `CLOCK_MONOTONIC`, and back.
//!
//! What is published carries times of `CLOCK_MONOTONIC`, the one clock that all processes of a machine share. A
//! pipeline's clock may be another and may drift against it, so the difference is sampled anew for every frame.

use gst::prelude::*;

/// Now, in ns of `CLOCK_MONOTONIC`.
pub(crate) fn monotonic_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Readings of three clocks take less than this, unless the thread is put to sleep in between.
const UNDISTURBED_NS: u64 = 20_000;

/// How far a clock is from `CLOCK_MONOTONIC` at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Difference {
    /// ns to add to the pipeline clock's time to get `CLOCK_MONOTONIC`.
    ahead: i128,
}

impl Difference {
    /// Compares the two clocks now. Calls the pipeline clock: not to be called with a lock held.
    pub(crate) fn sample(clock: &gst::Clock) -> Self {
        if is_monotonic(clock) {
            return Self::default();
        }
        let read = || {
            let before = monotonic_now();
            let time = clock.time();
            let after = monotonic_now();
            // The clock was read somewhere between the two: the middle is off by half of that at most.
            (after - before, Self::between(time, before.midpoint(after)))
        };
        // A thread that is put to sleep in between reads nonsense; that seldom happens twice.
        let first = read();
        if first.0 < UNDISTURBED_NS {
            first.1
        } else {
            std::cmp::min_by_key(first, read(), |(took, _)| *took).1
        }
    }

    /// The difference between a pipeline clock that reads `time` and a monotonic clock that reads `monotonic`.
    pub(crate) fn between(time: gst::ClockTime, monotonic: u64) -> Self {
        Self { ahead: i128::from(monotonic) - i128::from(time.nseconds()) }
    }

    /// The time of `CLOCK_MONOTONIC` at which the pipeline clock reads `time`; 0 where that lies before its start.
    pub(crate) fn to_monotonic(self, time: i128) -> u64 {
        clamp(time + self.ahead)
    }

    /// What the pipeline clock reads at `monotonic`; may lie before its start.
    pub(crate) fn to_clock(self, monotonic: u64) -> i128 {
        i128::from(monotonic) - self.ahead
    }
}

/// Whether a clock reads `CLOCK_MONOTONIC` itself, as a pipeline's usually does: nothing has to be measured then.
fn is_monotonic(clock: &gst::Clock) -> bool {
    let is_system = clock.type_() == gst::SystemClock::static_type();
    let (internal, external, numerator, denominator) = clock.calibration();
    is_system
        && clock.property::<gst::ClockType>("clock-type") == gst::ClockType::Monotonic
        && internal == external
        && numerator == denominator
}

/// The nearest time that a descriptor or a buffer can carry: all ones stand for "none" in both.
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
    fn what_lies_before_the_start_of_the_clock_is_its_start() {
        let difference = Difference::between(gst::ClockTime::from_seconds(5), 2_000_000_000);
        assert_eq!(difference.to_monotonic(1_000_000_000), 0);
        assert_eq!(difference.to_clock(0), 3_000_000_000);
        assert_eq!(Difference::between(gst::ClockTime::ZERO, 0).to_monotonic(i128::MAX / 2), u64::MAX - 1);
    }

    #[test]
    fn the_system_clock_of_gstreamer_is_sampled_within_a_millisecond() {
        gst::init().unwrap();
        let clock = gst::SystemClock::obtain();
        let difference = Difference::sample(&clock);
        assert_eq!(difference, Difference::default(), "it is the monotonic clock");
        let monotonic = difference.to_monotonic(i128::from(clock.time().nseconds()));
        assert!(monotonic.abs_diff(monotonic_now()) < 20_000_000);
    }

    #[test]
    fn other_clocks_are_measured() {
        gst::init().unwrap();
        let clock = || glib::Object::builder::<gst::SystemClock>();
        let realtime = clock().property("clock-type", gst::ClockType::Realtime).build();
        let calibrated = clock().build();
        let internal = calibrated.internal_time();
        calibrated.set_calibration(internal, gst::ClockTime::SECOND, 101, 100);
        for clock in [realtime, calibrated] {
            let difference = Difference::sample(clock.upcast_ref());
            assert_ne!(difference, Difference::default());
            let monotonic = difference.to_monotonic(i128::from(clock.time().nseconds()));
            assert!(monotonic.abs_diff(monotonic_now()) < 20_000_000);
        }
    }
}
