// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arrivals of a stream's frames: their period, their jitter, and the time of the next one.
//!
//! The last arrivals are assigned to the points of a grid with equal periods. Lost frames and
//! pauses leave points empty, and the frames of a burst share one. Order statistics ignore single
//! outliers; a change of the rate or of the phase shows as jitter until the window has passed it.

use std::{collections::VecDeque, ops::Range};

/// Number of arrivals that an estimate covers.
const WINDOW: usize = 32;

/// Number of arrivals without which there is no estimate.
const FEWEST: usize = 8;

/// One of so many arrivals may be an outlier on each side.
const OUTLIERS: usize = 16;

/// Longest time between two arrivals of an estimate in ns.
const LONGEST: u64 = 1_000_000_000;

/// Number of points without a frame after which none is expected: the stream pauses.
const MAX_EMPTY: u64 = 2;

/// Times of the last arrivals, in ns of one clock.
#[derive(Debug, Default)]
pub(super) struct Arrivals {
    times: VecDeque<u64>,
}

/// Estimate of a stream's rhythm. Times are in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rhythm {
    /// Point of the last arrival.
    last: u64,
    pub period: u64,
    /// Nearly all arrivals are at most this much before their points.
    pub early: u64,
    /// Nearly all arrivals are at most this much after their points.
    pub late: u64,
}

impl Arrivals {
    /// Adds an arrival. The estimate starts again after a long pause and after a step back of the
    /// clock.
    pub fn add(&mut self, time: u64) {
        let last = self.times.back().copied().unwrap_or(time);
        if time.checked_sub(last).is_none_or(|interval| interval > LONGEST) {
            self.times.clear();
        }
        if self.times.len() == WINDOW {
            self.times.pop_front();
        }
        self.times.push_back(time);
    }

    /// Returns the estimate, if there are enough arrivals.
    pub fn rhythm(&self) -> Option<Rhythm> {
        let first = *self.times.front()?;
        let count = self.times.len();
        if count < FEWEST {
            return None;
        }
        let mut times = [0; WINDOW];
        for (slot, time) in times.iter_mut().zip(&self.times) {
            *slot = (time - first) as i64;
        }
        let times = &times[..count];
        // Ignores bursts and gaps if they are fewer than half of the intervals.
        let rough = Sorted::of(times.windows(2).map(|pair| pair[1] - pair[0])).median();
        if rough <= 0 {
            return None;
        }
        let mut points = [0; WINDOW];
        for (index, pair) in times.windows(2).enumerate() {
            points[index + 1] = points[index] + (pair[1] - pair[0] + rough / 2) / rough;
        }
        let points = &points[..count];
        // Over half of the window, so that jitter hardly matters.
        let spans = times.iter().zip(points).zip(times.iter().zip(points).skip(count / 2));
        let spans = spans.map(|((from, first), (to, last))| (to - from, last - first));
        let slopes = spans.filter(|(_, points)| *points > 0).map(|(time, points)| time / points);
        let period = Sorted::of(slopes).median();
        if period <= 0 {
            return None;
        }
        let phases = Sorted::of(times.iter().zip(points).map(|(time, point)| time - point * period));
        let (phase, spread) = (phases.median(), phases.without(count / OUTLIERS));
        let last = phase + points[count - 1] * period;
        Some(Rhythm {
            last: first.saturating_add_signed(last),
            period: period.unsigned_abs(),
            early: (phase - spread.start).unsigned_abs(),
            late: (spread.end - phase).unsigned_abs(),
        })
    }
}

impl Rhythm {
    /// Returns the next point at which a frame may still arrive; none if the stream pauses.
    pub fn next(&self, now: u64) -> Option<u64> {
        let empty = now.saturating_sub(self.last.saturating_add(self.late)) / self.period;
        (empty <= MAX_EMPTY).then(|| self.last.saturating_add((empty + 1) * self.period))
    }
}

/// At most [`WINDOW`] values in order.
struct Sorted {
    values: [i64; WINDOW],
    count: usize,
}

impl Sorted {
    fn of(values: impl Iterator<Item = i64>) -> Self {
        let mut sorted = Self { values: [0; WINDOW], count: 0 };
        for (slot, value) in sorted.values.iter_mut().zip(values) {
            *slot = value;
            sorted.count += 1;
        }
        sorted.values[..sorted.count].sort_unstable();
        sorted
    }

    /// The median; 0 without values.
    fn median(&self) -> i64 {
        self.values[self.count / 2 - usize::from(self.count > 0 && self.count.is_multiple_of(2))]
    }

    /// Least and greatest value without `outliers` on each side, which are fewer than half.
    fn without(&self, outliers: usize) -> Range<i64> {
        self.values[outliers]..self.values[self.count - 1 - outliers]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: u64 = 1_000_000;
    const PERIOD: u64 = 16_666_667;
    /// Any start of the clock.
    const START: u64 = 5_000 * MILLISECOND;

    /// Deviations of 0 to `most`, in no order.
    fn noise(number: u64, most: u64) -> u64 {
        (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % (most + 1)
    }

    fn of(times: impl IntoIterator<Item = u64>) -> Arrivals {
        let mut arrivals = Arrivals::default();
        times.into_iter().for_each(|time| arrivals.add(time));
        arrivals
    }

    fn steady(frames: u64) -> impl Iterator<Item = u64> {
        (0..frames).map(|frame| START + frame * PERIOD)
    }

    /// Asserts the period and the next point after the arrivals, with a tolerance in ns.
    #[track_caller]
    fn assert_next(arrivals: &Arrivals, period: u64, next: u64, tolerance: u64) {
        let rhythm = arrivals.rhythm().expect("there are enough arrivals");
        assert!(rhythm.period.abs_diff(period) <= tolerance, "{rhythm:?}, but the period is {period}");
        let found = rhythm.next(*arrivals.times.back().unwrap()).expect("the stream does not pause");
        assert!(found.abs_diff(next) <= tolerance, "{found} of {rhythm:?} instead of {next}");
    }

    #[test]
    fn steady_stream_has_its_period_and_no_jitter() {
        for frames in [8, 9, 31, 32, 33, 1000] {
            let arrivals = of(steady(frames));
            assert_next(&arrivals, PERIOD, START + frames * PERIOD, 0);
            let rhythm = arrivals.rhythm().unwrap();
            assert_eq!((rhythm.early, rhythm.late), (0, 0));
        }
    }

    #[test]
    fn few_arrivals_give_no_estimate() {
        assert_eq!(of([]).rhythm(), None);
        assert_eq!(of(steady(7)).rhythm(), None);
    }

    #[test]
    fn jitter_is_within_early_and_late() {
        for most in [100_000, MILLISECOND, 3 * MILLISECOND] {
            let arrivals = of(steady(200).enumerate().map(|(frame, time)| time + noise(frame as u64, most)));
            assert_next(&arrivals, PERIOD, START + 200 * PERIOD + most / 2, most / 2);
            let rhythm = arrivals.rhythm().unwrap();
            let spread = rhythm.early + rhythm.late;
            assert!((most / 2..most * 5 / 4).contains(&spread), "{rhythm:?} with jitter of {most}");
        }
    }

    #[test]
    fn single_outlier_changes_nothing() {
        let late = |frame| u64::from(frame == 50) * 6 * MILLISECOND;
        for frames in 51..=60 {
            let arrivals = of(steady(frames).enumerate().map(|(frame, time)| time + late(frame)));
            assert_next(&arrivals, PERIOD, START + frames * PERIOD, 0);
            let rhythm = arrivals.rhythm().unwrap();
            assert_eq!((rhythm.early, rhythm.late), (0, 0), "{frames}");
        }
    }

    #[test]
    fn lost_frames_leave_points_empty() {
        let lost = [40, 41, 45, 52, 57, 58];
        let kept = steady(60).enumerate().filter(|(frame, _)| !lost.contains(frame));
        let arrivals = of(kept.map(|(_, time)| time));
        assert_next(&arrivals, PERIOD, START + 60 * PERIOD, 0);
        assert_eq!(arrivals.rhythm().unwrap().late, 0);
    }

    /// A source that was delayed by three periods sends what is due at once.
    #[test]
    fn burst_shares_a_point() {
        let times = steady(60).map(|time| {
            let delayed = START + 47 * PERIOD;
            if (START + 44 * PERIOD..delayed).contains(&time) { delayed } else { time }
        });
        let arrivals = of(times);
        assert_next(&arrivals, PERIOD, START + 60 * PERIOD, 0);
        assert_eq!(arrivals.rhythm().unwrap().late, 0);
    }

    #[test]
    fn pause_with_another_phase_passes() {
        let pause = 300 * MILLISECOND + 5 * MILLISECOND;
        let shifted =
            |frames: u64| of(steady(40).chain((40..40 + frames).map(|f| START + f * PERIOD + pause)));
        // As many arrivals on either side: no time fits both.
        let between = shifted(16).rhythm().unwrap();
        assert!(between.early + between.late > MILLISECOND, "{between:?}");
        let after = shifted(32);
        assert_next(&after, PERIOD, START + 72 * PERIOD + pause, 0);
        assert_eq!(after.rhythm().unwrap().late, 0);
    }

    #[test]
    fn long_pause_starts_estimate_again() {
        let mut arrivals = of(steady(40));
        arrivals.add(START + 40 * PERIOD + 3 * LONGEST);
        assert_eq!(arrivals.rhythm(), None);
    }

    #[test]
    fn clock_that_steps_back_starts_estimate_again() {
        let mut arrivals = of(steady(40));
        arrivals.add(7);
        assert_eq!(arrivals.rhythm(), None);
        (1..8).for_each(|frame| arrivals.add(7 + frame * PERIOD));
        assert_next(&arrivals, PERIOD, 7 + 8 * PERIOD, 0);
    }

    #[test]
    fn change_of_rate_shows_as_jitter_until_it_has_passed() {
        for (before, now) in [(PERIOD, PERIOD * 7 / 10), (PERIOD, PERIOD * 13 / 10), (PERIOD, PERIOD * 2 / 5)]
        {
            let begin = START + 40 * before;
            let changed = |frames| of((0..40).map(|f| START + f * before).chain(since(begin, now, frames)));
            let between = changed(16).rhythm().map_or(u64::MAX, |rhythm| rhythm.early + rhythm.late);
            assert!(between > MILLISECOND, "{between} from {before} to {now}");
            assert_next(&changed(33), now, begin + 33 * now, 0);
        }
    }

    fn since(begin: u64, period: u64, frames: u64) -> impl Iterator<Item = u64> {
        (0..frames).map(move |frame| begin + frame * period)
    }

    /// A stream of half the rate leaves each second point empty.
    #[test]
    fn halved_rate_stays_on_the_grid() {
        let begin = START + 40 * PERIOD;
        let arrivals = of(steady(40).chain(since(begin, 2 * PERIOD, 10)));
        assert_next(&arrivals, PERIOD, begin + 19 * PERIOD, 0);
    }

    #[test]
    fn next_point_skips_passed_ones_until_stream_pauses() {
        let rhythm = Rhythm { last: START, period: PERIOD, early: 10, late: 20 };
        let next = |after| rhythm.next(START + after);
        assert_eq!(next(0), Some(START + PERIOD));
        assert_eq!(next(PERIOD + 19), Some(START + PERIOD));
        assert_eq!(next(PERIOD + 20), Some(START + 2 * PERIOD));
        assert_eq!(next(3 * PERIOD + 19), Some(START + 3 * PERIOD));
        assert_eq!(next(3 * PERIOD + 20), None);
        assert_eq!(rhythm.next(u64::MAX), None);
        // The clock of this process is behind.
        assert_eq!(rhythm.next(0), Some(START + PERIOD));
    }

    /// The exporter may write any numbers.
    #[test]
    fn arbitrary_times_are_harmless() {
        let wild = [0, u64::MAX, 1, u64::MAX - 1, u64::MAX, u64::MAX, 5];
        for rounds in 1..20 {
            let mut arrivals = of(wild.iter().cycle().take(rounds * 5).copied());
            (0..40).for_each(|_| arrivals.add(u64::MAX));
            assert_eq!(arrivals.rhythm(), None);
        }
        let end = of((0..40).rev().map(|frame| u64::MAX - frame * PERIOD));
        assert_eq!(end.rhythm().unwrap().next(u64::MAX), Some(u64::MAX));
    }
}
