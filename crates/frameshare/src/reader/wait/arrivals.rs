// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arrivals of a stream's frames: their period, their offsets from it, and the time of the next
//! one.
//!
//! The last arrivals are assigned to the points of a grid with equal periods. Lost frames and
//! pauses leave points empty, and the frames of a burst share one. Medians ignore single outliers;
//! a change of the rate or of the phase shows as jitter until it has passed.

use std::{collections::VecDeque, ops::Range};

/// Number of arrivals that an estimate covers.
const COVERED: usize = 64;

/// Number of arrivals without which there is no estimate.
const FEWEST: usize = 8;

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
#[derive(Debug)]
pub(super) struct Rhythm {
    /// Point of the last arrival.
    last: u64,
    pub period: i64,
    /// Offsets of the arrivals from their points, in order. Half of them are negative.
    offsets: Vec<i64>,
}

impl Arrivals {
    /// Adds an arrival. The estimate starts again after a long pause and after a step back of the
    /// clock.
    pub fn add(&mut self, time: u64) {
        let last = self.times.back().copied().unwrap_or(time);
        if time.checked_sub(last).is_none_or(|interval| interval > LONGEST) {
            self.times.clear();
        }
        if self.times.len() == COVERED {
            self.times.pop_front();
        }
        self.times.push_back(time);
    }

    /// Returns the estimate, if there are enough arrivals.
    pub fn rhythm(&self) -> Option<Rhythm> {
        let (first, count) = (*self.times.front()?, self.times.len());
        if count < FEWEST {
            return None;
        }
        let times: Vec<_> = self.times.iter().map(|time| (time - first) as i64).collect();
        let intervals = times.windows(2).map(|pair| pair[1] - pair[0]);
        let usual = median(intervals.clone());
        if usual <= 0 {
            return None;
        }
        // Without bursts and gaps, which are fewer than half of the intervals. The median alone is
        // not the period if few long intervals make up for many short ones.
        let (mut sum, mut number) = (0, 0);
        for interval in intervals.filter(|interval| (interval - usual).abs() <= usual / 2) {
            sum += interval;
            number += 1;
        }
        let rough = sum / number;
        let mut points = Vec::with_capacity(count);
        // Follows the times slowly: one early or late frame moves no other one to another point.
        let (mut point, mut expected) = (0, 0);
        for time in &times {
            let passed = (time - expected + rough / 2).div_euclid(rough).max(0);
            point += passed;
            expected += passed * rough;
            expected += (time - expected) / 4;
            points.push(point);
        }
        // Over half of the arrivals or more, so that jitter hardly matters.
        let pairs = (0..count).flat_map(|first| (first + count / 2..count).map(move |last| (first, last)));
        let spans = pairs.map(|(first, last)| (times[last] - times[first], points[last] - points[first]));
        let slopes = spans.filter(|(_, points)| *points > 0).map(|(time, points)| time / points);
        let period = median(slopes);
        if period <= 0 {
            return None;
        }
        let phases = times.iter().zip(&points).map(|(time, point)| time - point * period);
        let phase = median(phases.clone());
        let mut offsets: Vec<_> = phases.map(|time| time - phase).collect();
        offsets.sort_unstable();
        let last = first.saturating_add_signed(phase + points[count - 1] * period);
        Some(Rhythm { last, period, offsets })
    }
}

impl Rhythm {
    /// Returns the range of offsets that most arrivals lie in, of all ranges that cost `budget` at
    /// most, and its cost: the mean time awake from `lead` before the range until the arrival, or
    /// until the end of the range if the frame comes later.
    pub fn widest(&self, lead: i64, budget: i64) -> Option<(Range<i64>, i64)> {
        let count = self.offsets.len();
        let (mut most, mut widest) = ((0, 0), None);
        for (begin, first) in self.offsets.iter().enumerate() {
            // Frames that come before the range may end the spin as well.
            let early = self.offsets[..begin].iter().map(|offset| (offset - first + lead).max(0));
            let mut awaited: i64 = early.sum();
            for (end, last) in self.offsets.iter().enumerate().skip(begin) {
                awaited += last - first + lead;
                let missed = (count - 1 - end) as i64 * (last - first + lead);
                let cost = (awaited + missed) / count as i64;
                if cost > budget {
                    break;
                }
                let found = (end - begin + 1, -cost);
                if found > most {
                    (most, widest) = (found, Some((*first..*last, cost)));
                }
            }
        }
        widest
    }

    /// Returns the first point whose frame is at most `late` later than it and may still arrive;
    /// none if the stream pauses.
    pub fn next(&self, now: u64, late: i64) -> Option<u64> {
        let period = self.period.unsigned_abs();
        let empty = now.saturating_sub(self.last.saturating_add_signed(late)) / period;
        (empty <= MAX_EMPTY).then(|| self.last.saturating_add((empty + 1) * period))
    }
}

/// The median; 0 without values.
fn median(values: impl Iterator<Item = i64>) -> i64 {
    let mut values: Vec<_> = values.collect();
    let middle = values.len().saturating_sub(1) / 2;
    if values.is_empty() { 0 } else { *values.select_nth_unstable(middle).1 }
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
        let found = rhythm.period.unsigned_abs();
        assert!(found.abs_diff(period) <= tolerance, "{rhythm:?}, but the period is {period}");
        let found = rhythm.next(*arrivals.times.back().unwrap(), 0).expect("the stream does not pause");
        assert!(found.abs_diff(next) <= tolerance, "{found} of {rhythm:?} instead of {next}");
    }

    /// Returns the range of the offsets without one of 16 on each side.
    fn spread(arrivals: &Arrivals) -> Range<i64> {
        let offsets = arrivals.rhythm().unwrap().offsets;
        let outliers = offsets.len() / 16;
        offsets[outliers]..offsets[offsets.len() - 1 - outliers]
    }

    #[test]
    fn steady_stream_has_its_period_and_no_jitter() {
        for frames in [8, 9, 63, 64, 65, 1000] {
            let arrivals = of(steady(frames));
            assert_next(&arrivals, PERIOD, START + frames * PERIOD, 0);
            assert_eq!(spread(&arrivals), 0..0);
        }
    }

    #[test]
    fn few_arrivals_give_no_estimate() {
        assert!(of([]).rhythm().is_none());
        assert!(of(steady(7)).rhythm().is_none());
    }

    #[test]
    fn jitter_shows_as_offsets() {
        for most in [100_000, MILLISECOND, 3 * MILLISECOND] {
            let arrivals = of(steady(200).enumerate().map(|(frame, time)| time + noise(frame as u64, most)));
            assert_next(&arrivals, PERIOD, START + 200 * PERIOD + most / 2, most / 2);
            let Range { start, end } = spread(&arrivals);
            let spread = (end - start).unsigned_abs();
            assert!((most / 2..most * 5 / 4).contains(&spread), "{spread} with jitter of {most}");
        }
    }

    #[test]
    fn single_outlier_changes_nothing() {
        let late = |frame| u64::from(frame == 50) * 6 * MILLISECOND;
        for frames in 51..=60 {
            let arrivals = of(steady(frames).enumerate().map(|(frame, time)| time + late(frame)));
            assert_next(&arrivals, PERIOD, START + frames * PERIOD, 0);
            assert_eq!(spread(&arrivals), 0..0, "{frames}");
        }
    }

    #[test]
    fn lost_frames_leave_points_empty() {
        let lost = [40, 41, 45, 52, 57, 58];
        let kept = steady(60).enumerate().filter(|(frame, _)| !lost.contains(frame));
        let arrivals = of(kept.map(|(_, time)| time));
        assert_next(&arrivals, PERIOD, START + 60 * PERIOD, 0);
        assert_eq!(spread(&arrivals).end, 0);
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
        assert_eq!(spread(&arrivals).end, 0);
    }

    #[test]
    fn pause_with_another_phase_passes() {
        let pause = 300 * MILLISECOND + 5 * MILLISECOND;
        let shifted =
            |frames: u64| of(steady(40).chain((40..40 + frames).map(|f| START + f * PERIOD + pause)));
        // As many arrivals on either side: no time fits both.
        let between = spread(&shifted(32));
        assert!(between.end - between.start > MILLISECOND as i64, "{between:?}");
        let after = shifted(64);
        assert_next(&after, PERIOD, START + 104 * PERIOD + pause, 0);
        assert_eq!(spread(&after), 0..0);
    }

    #[test]
    fn long_pause_starts_estimate_again() {
        let mut arrivals = of(steady(40));
        arrivals.add(START + 40 * PERIOD + 3 * LONGEST);
        assert!(arrivals.rhythm().is_none());
    }

    #[test]
    fn clock_that_steps_back_starts_estimate_again() {
        let mut arrivals = of(steady(40));
        arrivals.add(7);
        assert!(arrivals.rhythm().is_none());
        (1..8).for_each(|frame| arrivals.add(7 + frame * PERIOD));
        assert_next(&arrivals, PERIOD, 7 + 8 * PERIOD, 0);
    }

    #[test]
    fn change_of_rate_shows_as_jitter_until_it_has_passed() {
        for (before, now) in [(PERIOD, PERIOD * 7 / 10), (PERIOD, PERIOD * 13 / 10), (PERIOD, PERIOD * 2 / 5)]
        {
            let begin = START + 40 * before;
            let changed = |frames| of((0..40).map(|f| START + f * before).chain(since(begin, now, frames)));
            let between = spread(&changed(32));
            assert!(between.end - between.start > MILLISECOND as i64, "{between:?} from {before} to {now}");
            assert_next(&changed(65), now, begin + 65 * now, 0);
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
    fn widest_range_is_within_budget() {
        let rhythm =
            Rhythm { last: START, period: PERIOD as i64, offsets: vec![-90, -12, -10, 0, 3, 5, 7, 90] };
        let widest = |budget| rhythm.widest(80, budget);
        assert_eq!(widest(9), None);
        // The fewer frames come after a range, the less it costs.
        assert_eq!(widest(20), Some((90..90, 10)));
        assert_eq!(widest(79), Some((-10..7, 78)));
        assert_eq!(widest(1000), Some((-90..90, 169)));
    }

    #[test]
    fn next_point_skips_passed_ones_until_stream_pauses() {
        let rhythm = Rhythm { last: START, period: PERIOD as i64, offsets: Vec::new() };
        let next = |after| rhythm.next(START + after, 20);
        assert_eq!(next(0), Some(START + PERIOD));
        assert_eq!(next(PERIOD + 19), Some(START + PERIOD));
        assert_eq!(next(PERIOD + 20), Some(START + 2 * PERIOD));
        assert_eq!(next(3 * PERIOD + 19), Some(START + 3 * PERIOD));
        assert_eq!(next(3 * PERIOD + 20), None);
        assert_eq!(rhythm.next(u64::MAX, 20), None);
        // The clock of this process is behind.
        assert_eq!(rhythm.next(0, 20), Some(START + PERIOD));
    }

    /// The exporter may write any numbers.
    #[test]
    fn arbitrary_times_are_harmless() {
        let wild = [0, u64::MAX, 1, u64::MAX - 1, u64::MAX, u64::MAX, 5];
        for rounds in 1..20 {
            let mut arrivals = of(wild.iter().cycle().take(rounds * 5).copied());
            (0..40).for_each(|_| arrivals.add(u64::MAX));
            assert!(arrivals.rhythm().is_none());
        }
        let end = of((0..40).rev().map(|frame| u64::MAX - frame * PERIOD));
        assert_eq!(end.rhythm().unwrap().next(u64::MAX, 0), Some(u64::MAX));
    }
}
