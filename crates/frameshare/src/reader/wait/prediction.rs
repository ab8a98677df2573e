// SPDX-License-Identifier: MIT OR Apache-2.0

//! Prediction of the next frame: the time to end a sleep, and to spin instead.
//!
//! The lead before the expected frame covers the stream's jitter and the overshoot of this thread's
//! sleeps, which depends on the machine and its load. If that costs too much, or if the machine is
//! busy, there is no prediction, and the reader sleeps as without one.

use super::arrivals::{Arrivals, Rhythm};
use crate::sys::backoff::Spin;
use std::time::Duration;

/// A spin may take this part of the period.
const MAX_SHARE: u64 = 50;

/// Longest expected spin in ns, whatever the period.
const LONGEST: u64 = 400_000;

/// Overshoot in ns that is assumed before the first sleeps: that of an idle machine. A budget below
/// it allows no prediction, so streams of more than 200 frames a second have none.
const ASSUMED: u64 = 100_000;

/// Time in ns that a spin goes on after the latest expected arrival.
const MARGIN: u64 = 10_000;

/// Time in ns for which the thread is to be awake before the earliest expected arrival.
const EARLINESS: u64 = 25_000;

/// Shortest and longest time in ns without a prediction after a sign of a busy machine.
const SHORTEST_REST: u64 = 100_000_000;
const LONGEST_REST: u64 = 3_200_000_000;

/// Prediction of the frames of one reader.
#[derive(Debug, Default)]
pub(super) struct Prediction {
    arrivals: Arrivals,
    overshoots: Overshoots,
    rest: Rest,
}

/// Prediction of one wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    rhythm: Rhythm,
    /// Time in ns from the end of the sleep to the expected frame.
    lead: u64,
    /// Longest affordable overshoot in ns.
    budget: u64,
}

/// Time of one spin, in ns of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub begin: u64,
    pub end: u64,
}

impl Prediction {
    /// Records the time of a frame's publication, which another process has written. The frame has
    /// been there `now` at the latest.
    pub fn add_frame(&mut self, published: u64, now: u64) {
        self.arrivals.add(published.min(now));
    }

    /// Returns the plan of a wait, if its spins are affordable and the machine is not busy.
    pub fn plan(&mut self, now: u64) -> Option<Plan> {
        if now < self.rest.end {
            return None;
        }
        let rhythm = self.arrivals.rhythm()?;
        let budget = (rhythm.period / MAX_SHARE).min(LONGEST);
        let lead = rhythm.early.saturating_add(self.overshoots.most() + EARLINESS);
        if budget < ASSUMED || lead.saturating_sub(self.overshoots.typical()) > budget {
            // Samples are taken in planned sleeps only, so they would stay forever.
            self.overshoots.forget_one();
            return None;
        }
        Spin::is_allowed().then_some(Plan { rhythm, lead, budget })
    }

    /// Records that a planned sleep ended, at `now`. A frame that was published before the planned
    /// end has ended it.
    pub fn add_sleep(&mut self, plan: &Plan, window: Window, published: Option<u64>, now: u64) {
        if now < window.begin || published.is_some_and(|published| published < window.begin) {
            return;
        }
        let overshoot = now - window.begin;
        if overshoot > plan.budget {
            self.rest.add(false, now);
        } else {
            self.overshoots.add(overshoot);
        }
    }

    /// Records that a spin ended, at `now`: well if the frame came, and the thread was alone on its
    /// core. A spin without a frame may have kept the exporter from this core.
    pub fn add_spin(&mut self, went_well: bool, now: u64) {
        self.rest.add(went_well, now);
    }
}

impl Plan {
    /// Returns the next time to spin; none if the stream pauses.
    pub fn next(&self, now: u64) -> Option<Window> {
        let time = self.rhythm.next(now)?;
        let end = time.saturating_add(self.rhythm.late).saturating_add(MARGIN);
        Some(Window { begin: time.saturating_sub(self.lead), end })
    }
}

impl Window {
    /// Returns the time until the spin begins; none if it is to begin at once.
    pub fn until_begin(self, now: u64) -> Option<Duration> {
        self.begin.checked_sub(now).filter(|left| *left > 0).map(Duration::from_nanos)
    }

    /// Returns the time until the spin ends.
    pub fn until_end(self, now: u64) -> Duration {
        Duration::from_nanos(self.end.saturating_sub(now))
    }
}

/// Rest from predictions on a busy machine: longer with each sign of it, and shorter with each spin
/// that went well.
#[derive(Debug)]
struct Rest {
    end: u64,
    next: u64,
}

impl Rest {
    fn add(&mut self, went_well: bool, now: u64) {
        if went_well {
            self.next = (self.next / 2).max(SHORTEST_REST);
        } else {
            self.end = now.saturating_add(self.next);
            self.next = (self.next * 2).min(LONGEST_REST);
        }
    }
}

impl Default for Rest {
    fn default() -> Self {
        Self { end: 0, next: SHORTEST_REST }
    }
}

/// The last times in ns by which sleeps ended late.
#[derive(Debug)]
struct Overshoots {
    recent: [u64; 16],
    next: usize,
}

impl Overshoots {
    fn add(&mut self, overshoot: u64) {
        self.recent[self.next] = overshoot;
        self.next = (self.next + 1) % self.recent.len();
    }

    fn forget_one(&mut self) {
        self.add(ASSUMED);
    }

    /// Exceeded by one sleep only.
    fn most(&self) -> u64 {
        self.ranked(self.recent.len() - 2)
    }

    fn typical(&self) -> u64 {
        self.ranked(self.recent.len() / 2)
    }

    fn ranked(&self, rank: usize) -> u64 {
        let mut sorted = self.recent;
        *sorted.select_nth_unstable(rank).1
    }
}

impl Default for Overshoots {
    fn default() -> Self {
        Self { recent: [ASSUMED; 16], next: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    const PERIOD: u64 = 16_666_667;
    const START: u64 = 5_000 * MILLISECOND;
    const NOW: u64 = START + 39 * PERIOD;

    /// Runs a test on a thread of its own, whose contention is its own too.
    fn on_a_quiet_thread(test: impl FnOnce() + Send) {
        std::thread::scope(|scope| scope.spawn(test).join())
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }

    /// After 40 frames, each late by up to `jitter`.
    fn prediction(period: u64, jitter: u64) -> Prediction {
        let mut prediction = Prediction::default();
        for frame in 0..40 {
            let late = frame * 7 % 10 * jitter / 9;
            prediction.add_frame(START + frame * period + late, u64::MAX);
        }
        prediction
    }

    /// Returns the plan, which a machine with one core does not allow.
    fn plan(prediction: &mut Prediction) -> Option<Plan> {
        let plan = prediction.plan(NOW);
        if crate::sys::allowed_cores() < 2 {
            assert!(plan.is_none());
            let (rhythm, budget) = (prediction.arrivals.rhythm()?, LONGEST);
            return Some(Plan {
                rhythm,
                lead: rhythm.early + prediction.overshoots.most() + EARLINESS,
                budget,
            });
        }
        plan
    }

    #[test]
    fn steady_stream_has_a_window_around_its_next_frame() {
        on_a_quiet_thread(|| {
            let mut prediction = prediction(PERIOD, 0);
            let next = START + 40 * PERIOD;
            let plan = plan(&mut prediction).unwrap();
            let window = plan.next(NOW).unwrap();
            let lead = ASSUMED + EARLINESS;
            assert_eq!(window, Window { begin: next - lead, end: next + MARGIN });
            assert_eq!(window.until_begin(NOW), Some(Duration::from_nanos(PERIOD - lead)));
            assert_eq!(window.until_begin(window.begin), None);
            assert_eq!(window.until_end(window.begin), Duration::from_nanos(lead + MARGIN));
            assert_eq!(window.until_end(u64::MAX), Duration::ZERO);
            // One frame is lost, and then the stream pauses.
            assert_eq!(plan.next(next + 1).unwrap().end, next + PERIOD + MARGIN);
            assert_eq!(plan.next(next + 10 * PERIOD), None);
        });
    }

    #[test]
    fn lead_follows_overshoot_of_sleeps() {
        on_a_quiet_thread(|| {
            let mut prediction = prediction(PERIOD, 0);
            for overshoot in [20_000, 60_000, 40_000] {
                for _ in 0..16 {
                    let plan = plan(&mut prediction).unwrap();
                    let window = plan.next(NOW).unwrap();
                    prediction.add_sleep(&plan, window, None, window.begin + overshoot);
                }
                assert_eq!(plan(&mut prediction).unwrap().lead, overshoot + EARLINESS);
            }
        });
    }

    #[test]
    fn frame_before_planned_end_says_nothing_about_sleeps() {
        on_a_quiet_thread(|| {
            let mut prediction = prediction(PERIOD, 0);
            let plan = plan(&mut prediction).unwrap();
            let window = plan.next(NOW).unwrap();
            for _ in 0..16 {
                prediction.add_sleep(&plan, window, Some(window.begin - 9), window.begin + 7);
                prediction.add_sleep(&plan, window, None, window.begin - 5);
            }
            assert_eq!(prediction.overshoots.most(), ASSUMED);
            // A frame that came while the thread should have been awake.
            (0..2).for_each(|_| {
                prediction.add_sleep(&plan, window, Some(window.begin + 5), window.begin + 150_000)
            });
            assert_eq!(prediction.overshoots.most(), 150_000);
        });
    }

    #[test]
    fn overshoot_beyond_budget_suspends_predictions() {
        on_a_quiet_thread(|| {
            let mut prediction = prediction(PERIOD, 0);
            let plan = plan(&mut prediction).unwrap();
            let window = plan.next(NOW).unwrap();
            let woken = window.begin + PERIOD / MAX_SHARE + 1;
            prediction.add_sleep(&plan, window, None, woken);
            assert!(prediction.plan(woken + SHORTEST_REST - 1).is_none());
            let again = prediction.plan(woken + SHORTEST_REST);
            assert!(again.is_some() || crate::sys::allowed_cores() < 2);
        });
    }

    #[test]
    fn spins_in_vain_suspend_predictions_for_ever_longer() {
        let mut rest = Rest::default();
        let mut rests = Vec::new();
        for _ in 0..7 {
            rest.add(false, START);
            rests.push((rest.end - START) / MILLISECOND);
        }
        assert_eq!(rests, [100, 200, 400, 800, 1600, 3200, 3200]);
        (0..10).for_each(|_| rest.add(true, START));
        rest.add(false, START);
        assert_eq!(rest.end, START + SHORTEST_REST);
    }

    #[test]
    fn large_jitter_and_fast_streams_have_no_plan() {
        on_a_quiet_thread(|| {
            for (period, jitter) in [(PERIOD, MILLISECOND), (PERIOD, 5 * MILLISECOND), (4 * MILLISECOND, 0)] {
                assert!(prediction(period, jitter).plan(NOW).is_none(), "{period}, {jitter}");
            }
            assert!(plan(&mut prediction(PERIOD, 200_000)).is_some());
        });
    }

    /// Otherwise two long ones would end the prediction for good.
    #[test]
    fn overshoots_that_forbid_plans_are_forgotten() {
        on_a_quiet_thread(|| {
            let mut prediction = prediction(PERIOD, 300_000);
            let plan = plan(&mut prediction).unwrap();
            let window = plan.next(NOW).unwrap();
            (0..2).for_each(|_| prediction.add_sleep(&plan, window, None, window.begin + 330_000));
            let refused = (0..100).take_while(|_| prediction.plan(NOW).is_none()).count();
            assert!((1..=16).contains(&refused) || crate::sys::allowed_cores() < 2, "{refused}");
        });
    }
}
