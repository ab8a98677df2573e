// SPDX-License-Identifier: MIT OR Apache-2.0

//! Times at which a reader spins instead of sleeping, within its share of a core.
//!
//! A window is around the expected arrival of one frame. It covers as many of the last arrivals as
//! the share affords, and a spin in it ends with the frame. The sleep before a window ends earlier
//! by the overshoot of this thread's sleeps, which depends on the machine and its load.

use super::arrivals::Arrivals;
use std::time::Duration;

/// Time for which the unspent share is kept, in ns.
const KEPT: i64 = 500_000_000;

/// Number of periods whose share may be spent in advance.
const OVERDRAFT: i64 = 4;

/// Bound of what was spent beyond the share, in ns: some windows of the longest period.
const DEBT: i64 = 60_000_000_000;

/// The part of the unspent share that one window may take.
const PART: i64 = 8;

/// Overshoot in ns that is assumed before the first sleeps: that of an idle machine.
const ASSUMED: i64 = 100_000;

/// An overshoot of this time in ns is a sign of a busy machine.
const LONGEST: i64 = 500_000;

/// Time in ns for which the thread is to be awake before the earliest expected arrival.
const EARLINESS: i64 = 25_000;

/// Time in ns that a spin goes on after the latest expected arrival.
const MARGIN: i64 = 10_000;

/// A frame that is published so soon after a spin in vain, in ns, may have waited for the core of
/// the reader: a sign of a busy machine.
const PROMPT: u64 = 100_000;

/// Number of signs in a row after which there are no windows for [`REST`] ns.
const MANY: u32 = 3;
const REST: u64 = 300_000_000;

/// The windows of one reader.
#[derive(Debug, Default)]
pub(super) struct Windows {
    arrivals: Arrivals,
    overshoots: Overshoots,
    account: Account,
    /// End of the last spin, if no frame came in it.
    in_vain: Option<u64>,
    /// Number of signs of a busy machine in a row.
    signs: u32,
    /// Time until which there are no windows.
    rest: u64,
}

/// Time of one spin, in ns of the monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub begin: u64,
    pub end: u64,
}

impl Windows {
    /// Records the time of a frame's publication, which another process has written. The frame has
    /// been there `now` at the latest. A frame that waited for the end of a spin is a sign of a
    /// busy machine.
    pub fn add_frame(&mut self, published: u64, now: u64) {
        let published = published.min(now);
        self.arrivals.add(published);
        if let Some(end) = self.in_vain.take() {
            let is_prompt = published.checked_sub(end).is_some_and(|since| since < PROMPT);
            self.note(is_prompt, published);
        }
    }

    /// Records whether the machine is busy. The reader rests after some signs in a row.
    fn note(&mut self, is_busy: bool, now: u64) {
        self.signs = if is_busy { self.signs.saturating_add(1) } else { 0 };
        if self.signs >= MANY {
            self.rest = now.saturating_add(REST);
        }
    }

    /// Records that a sleep until a window ended, at `now`. A frame that was published before the
    /// window has ended it. A very late end is a sign of a busy machine.
    pub fn add_sleep(&mut self, window: Window, published: Option<u64>, now: u64) {
        if now < window.begin || published.is_some_and(|published| published < window.begin) {
            return;
        }
        let overshoot = (now - window.begin).min(LONGEST as u64) as i64;
        self.overshoots.add(overshoot);
        if overshoot == LONGEST {
            self.note(true, now);
        }
    }

    /// Records that a spin ended at `now`, because an item came or in vain.
    pub fn add_spin(&mut self, has_item: bool, now: u64) {
        self.in_vain = (!has_item).then_some(now);
        if has_item {
            self.note(false, now);
        }
    }

    /// Returns the next window; none if the share (% of a core) affords none, or if the stream
    /// pauses. `spun` is the time of all spins in windows so far: whatever times the exporter
    /// writes, a spin beyond the share is made up for before the next one.
    pub fn next(&mut self, share: u32, spun: Duration, now: u64) -> Option<Window> {
        let unspent = self.account.settle(share, spun, now);
        if now < self.rest {
            return None;
        }
        let rhythm = self.arrivals.rhythm()?;
        let earned = rhythm.period * i64::from(share) / 100;
        if unspent + OVERDRAFT * earned <= 0 {
            return None;
        }
        let budget = earned + unspent / PART;
        let lead = EARLINESS + self.overshoots.most();
        let Some((offsets, cost)) = rhythm.widest(lead - self.overshoots.typical(), budget) else {
            // Overshoots are measured before windows only, so large ones would stay forever.
            self.overshoots.add(ASSUMED);
            return None;
        };
        // The arrivals so far are a sample, and the next one may lie outside.
        let slack = ((budget - cost) / 2).min((offsets.end - offsets.start) / 8);
        let late = offsets.end + slack + MARGIN;
        let point = rhythm.next(now, late)?;
        Some(Window {
            begin: point.saturating_add_signed(offsets.start - slack - lead),
            end: point.saturating_add_signed(late),
        })
    }
}

/// The share of a core that a reader has not spent. Times are in ns.
#[derive(Debug, Default)]
struct Account {
    at: u64,
    spun: u64,
    unspent: i64,
}

impl Account {
    /// Returns the unspent time, which is negative after more spins than the share affords.
    fn settle(&mut self, share: u32, spun: Duration, now: u64) -> i64 {
        let (spun, limit) = (spun.as_nanos() as u64, KEPT / 100 * i64::from(share));
        if self.at == 0 {
            self.at = now;
        }
        let earned = now.saturating_sub(self.at).min(DEBT as u64) / 100 * u64::from(share);
        let spent = spun.saturating_sub(self.spun).min(DEBT as u64);
        self.unspent = (self.unspent + earned as i64 - spent as i64).clamp(-DEBT, limit);
        (self.at, self.spun) = (now, spun);
        self.unspent
    }
}

/// The last times in ns by which sleeps ended late.
#[derive(Debug)]
struct Overshoots {
    recent: [i64; 16],
    next: usize,
}

impl Overshoots {
    fn add(&mut self, overshoot: i64) {
        self.recent[self.next] = overshoot;
        self.next = (self.next + 1) % self.recent.len();
    }

    /// Exceeded by one sleep only.
    fn most(&self) -> i64 {
        self.ranked(self.recent.len() - 2)
    }

    fn typical(&self) -> i64 {
        self.ranked(self.recent.len() / 2)
    }

    fn ranked(&self, rank: usize) -> i64 {
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

    const MILLISECOND: i64 = 1_000_000;
    const PERIOD: i64 = 16_666_667;
    const START: i64 = 5_000 * MILLISECOND;
    /// Seconds of a simulated stream, of which the first is not measured.
    const SECONDS: i64 = 21;

    /// Numbers in no order, the same in each run.
    struct Random(u64);

    impl Random {
        /// At least 0 and less than 1.
        fn uniform(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 11) as f64 / (1_u64 << 53) as f64
        }

        /// With a standard deviation of 1.
        fn gaussian(&mut self) -> f64 {
            (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
        }
    }

    /// The result of a simulation.
    #[derive(Debug)]
    struct Outcome {
        /// Frames that came in a spin, %.
        covered: f64,
        /// Time in spins, % of a core.
        spent: f64,
        /// The most of any two seconds.
        spent_at_most: f64,
    }

    /// Simulates a reader of a stream whose frames are late by `delay`, in ms.
    fn simulate(share: u32, period: i64, mut delay: impl FnMut(&mut Random) -> f64) -> Outcome {
        let (mut windows, mut random) = (Windows::default(), Random(1));
        let (mut now, mut spun, mut covered, mut count) = (0, 0, 0, 0);
        let mut spins = Vec::new();
        for frame in 0..SECONDS * 1_000 * MILLISECOND / period {
            let late = (delay(&mut random) * MILLISECOND as f64) as i64;
            let published = ((START + frame * period + late) as u64).max(now);
            let before = spun;
            let mut is_covered = false;
            if let Some(window) = windows.next(share, Duration::from_nanos(spun), now)
                && window.begin.max(now) < published
            {
                let mut woken = now;
                if window.begin > now {
                    woken = window.begin + 50_000 + (random.uniform() * 50_000.0) as u64;
                    windows.add_sleep(window, (published < woken).then_some(published), woken);
                }
                let end = published.min(window.end);
                spun += end.saturating_sub(woken);
                is_covered = woken <= published && published <= window.end;
                if woken <= published {
                    windows.add_spin(is_covered, end);
                }
            }
            // Sleeping readers need their wake-up, and all of them some time for the frame.
            now = published.max(now) + if is_covered { 5_000 } else { 80_000 };
            windows.add_frame(published, now);
            spins.push(spun - before);
            if frame * period >= 1_000 * MILLISECOND {
                covered += u64::from(is_covered);
                count += 1;
            }
        }
        let second = (1_000 * MILLISECOND / period) as usize;
        let percent =
            |spins: &[u64]| spins.iter().sum::<u64>() as f64 * 100.0 / (spins.len() as f64 * period as f64);
        Outcome {
            covered: covered as f64 * 100.0 / count as f64,
            spent: percent(&spins[second..]),
            spent_at_most: spins.windows(2 * second).map(percent).fold(0.0, f64::max),
        }
    }

    #[test]
    fn simulated_reader_covers_frames_within_its_share() {
        for (share, jitter, least) in [
            (1, 0.0, 99.0),
            (4, 0.0, 99.0),
            (6, 1.0, 98.0),
            (25, 5.0, 98.0),
            (99, 5.0, 98.0),
            // The share does not suffice for all frames.
            (1, 1.0, 50.0),
            (6, 5.0, 55.0),
            (15, 5.0, 90.0),
            (50, 16.0, 60.0),
        ] {
            let uniform = simulate(share, PERIOD, |random| jitter * random.uniform());
            let gaussian = simulate(share, PERIOD, |random| jitter / 4.0 * random.gaussian());
            // Each delay is far from the one before, and differs from it by one of two values.
            let mut number = 0.0;
            let uneven = simulate(share, PERIOD, |_| {
                number += 0.618_034;
                jitter * (number % 1.0)
            });
            for outcome in [uniform, gaussian, uneven] {
                let Outcome { covered, spent, spent_at_most } = outcome;
                let (share, case) = (f64::from(share), format!("{share} %, {jitter} ms: {outcome:?}"));
                assert!(covered >= least, "{case}");
                assert!(spent <= share * 1.02, "{case}");
                assert!(spent_at_most <= share * 1.35, "{case}");
            }
        }
    }

    /// The frames are those of a clip that a decoder hands on in pairs.
    #[test]
    fn simulated_share_holds_for_an_uneven_stream() {
        for share in [1, 5, 20] {
            let mut number = 0;
            let outcome = simulate(share, PERIOD, |random| {
                number += 1;
                f64::from(number % 2 * 9) + 2.0 * random.uniform()
            });
            assert!(outcome.spent <= f64::from(share) * 1.02, "{share} %: {outcome:?}");
        }
    }

    /// Returns the share of a core, in %, that a reader spends in a minute of a stream whose
    /// exporter claims that one of `number` frames was late, and publishes each frame when the
    /// reader has stopped to spin for it.
    fn spent_for_a_liar(share: u32, rate: i64, number: i64, late: i64) -> f64 {
        let (period, mut windows, mut spun) = (1_000 * MILLISECOND / rate, Windows::default(), 0);
        for frame in 0..60 * rate {
            let claimed = (START + frame * period + i64::from(frame % number == 0) * late) as u64;
            let mut now = claimed;
            if let Some(window) = windows.next(share, Duration::from_nanos(spun), claimed - period as u64 / 2)
            {
                let begin = window.begin.max(claimed - period as u64 / 2);
                spun += window.end.saturating_sub(begin);
                windows.add_spin(false, window.end);
                now = now.max(window.end + 1_000_000);
            }
            windows.add_frame(claimed, now);
        }
        spun as f64 / 6e8
    }

    #[test]
    fn share_holds_whatever_times_the_exporter_claims() {
        for (share, rate) in [(1, 5), (1, 15), (1, 30), (5, 5), (5, 10), (10, 5), (25, 60)] {
            for number in [2, 4, 16, 40, 60] {
                for late in [2, 3, 5].map(|part| 1_000 * MILLISECOND / rate / part) {
                    let spent = spent_for_a_liar(share, rate, number, late);
                    // The last window is not made up for yet.
                    let most = f64::from(share) + 100.0 / (60 * rate) as f64;
                    assert!(spent <= most, "{share} %, {rate}/s, one of {number} by {late}: {spent} %");
                }
            }
        }
    }

    const SHARE: u32 = 5;
    const SECOND: u64 = 1_000_000_000;
    const LAST: u64 = START as u64 + 39 * PERIOD as u64;
    const NEXT: u64 = LAST + PERIOD as u64;

    /// After 40 frames without jitter.
    fn steady() -> Windows {
        let mut windows = Windows::default();
        (0..40).for_each(|frame| windows.add_frame((START + frame * PERIOD) as u64, u64::MAX));
        windows
    }

    fn next(windows: &mut Windows, now: u64) -> Option<Window> {
        windows.next(SHARE, Duration::ZERO, now)
    }

    #[test]
    fn steady_stream_has_a_window_around_its_next_frame() {
        let mut windows = steady();
        let around = |frame| {
            let begin = frame - (ASSUMED + EARLINESS) as u64;
            Some(Window { begin, end: frame + MARGIN as u64 })
        };
        assert_eq!(next(&mut windows, LAST), around(NEXT));
        // One frame is lost, and then the stream pauses.
        let lost = NEXT + MARGIN as u64;
        assert_eq!(next(&mut windows, lost), around(NEXT + PERIOD as u64));
        assert_eq!(next(&mut windows, NEXT + SECOND), None);
    }

    #[test]
    fn begin_of_window_follows_overshoot_of_sleeps() {
        let mut windows = steady();
        for overshoot in [20_000, 60_000, 40_000] {
            for _ in 0..16 {
                let window = next(&mut windows, LAST).unwrap();
                windows.add_sleep(window, None, window.begin + overshoot);
                // A frame or a timeout before the window says nothing.
                windows.add_sleep(window, Some(window.begin - 9), window.begin + 300_000);
                windows.add_sleep(window, None, window.begin - 5);
            }
            let window = next(&mut windows, LAST).unwrap();
            assert_eq!(NEXT - window.begin, overshoot + EARLINESS as u64);
        }
    }

    /// Otherwise two long ones would end the windows for good.
    #[test]
    fn overshoots_that_cost_the_share_are_forgotten() {
        let mut windows = steady();
        let once = |windows: &mut Windows, now| windows.next(1, Duration::ZERO, now);
        let window = once(&mut windows, LAST).unwrap();
        (0..2).for_each(|_| windows.add_sleep(window, None, window.begin + LONGEST as u64 - 1));
        // As after frames that have spent all.
        windows.account = Account { at: LAST, ..Account::default() };
        let refused = (0..100).take_while(|_| once(&mut windows, LAST).is_none()).count();
        assert!((1..=16).contains(&refused), "{refused}");
    }

    #[test]
    fn busy_machine_stops_windows_for_some_time() {
        let rests = |windows: &mut Windows| {
            assert_eq!(next(windows, LAST), None);
            assert_eq!(next(windows, LAST + REST - 1), None);
            // The frames that have come since.
            (40..70).for_each(|frame| windows.add_frame((START + frame * PERIOD) as u64, u64::MAX));
            assert!(next(windows, LAST + SECOND / 2).is_some());
        };
        let mut overslept = steady();
        let window = next(&mut overslept, LAST).unwrap();
        let oversleep = |windows: &mut Windows| {
            windows.add_sleep(window, None, window.begin + LONGEST as u64);
        };
        (1..MANY).for_each(|_| oversleep(&mut overslept));
        assert!(next(&mut overslept, LAST).is_some());
        oversleep(&mut overslept);
        rests(&mut overslept);

        let mut blocking = steady();
        let block = |windows: &mut Windows, times| {
            for _ in 0..times {
                windows.add_spin(false, LAST - 20_000);
                windows.add_frame(LAST, u64::MAX);
            }
        };
        block(&mut blocking, MANY - 1);
        assert!(next(&mut blocking, LAST).is_some());
        // A frame of a spin, and one that came long after, show that the exporter has its core.
        blocking.add_spin(true, LAST);
        block(&mut blocking, MANY - 1);
        blocking.add_spin(false, LAST - PROMPT);
        blocking.add_frame(LAST, u64::MAX);
        block(&mut blocking, MANY - 1);
        assert!(next(&mut blocking, LAST).is_some());
        block(&mut blocking, 1);
        rests(&mut blocking);
    }

    #[test]
    fn account_keeps_unspent_time_for_half_a_second_and_debts() {
        let mut account = Account::default();
        let kept = KEPT / 100 * 20;
        let mut settle = |spun, now| account.settle(20, Duration::from_millis(spun), now);
        assert_eq!((settle(0, 9 * SECOND), settle(0, 10 * SECOND)), (0, kept));
        assert_eq!(settle(30, 10 * SECOND), kept - 30 * MILLISECOND);
        assert_eq!(settle(30, 10 * SECOND + 50_000_000), kept - 20 * MILLISECOND);
        let debt = kept - 30 * MILLISECOND + 200 * MILLISECOND - 4_970 * MILLISECOND;
        assert_eq!(settle(5_000, 11 * SECOND), debt);
        // The clock of this process never steps back, but nothing relies on it.
        assert_eq!(settle(5_000, 0), debt);
        assert_eq!(settle(1_000_000, 0), -DEBT);
    }

    /// The exporter may write any times.
    #[test]
    fn arbitrary_times_are_harmless() {
        let mut windows = Windows::default();
        for frame in (0..100).rev() {
            windows.add_frame(u64::MAX - frame * PERIOD as u64, u64::MAX);
            windows.add_spin(false, u64::MAX);
            let _ = windows.next(100, Duration::MAX, u64::MAX - frame);
        }
        for time in [0, u64::MAX, 1, u64::MAX - 1, 7].iter().cycle().take(50) {
            windows.add_frame(*time, u64::MAX);
            assert_eq!(windows.next(1, Duration::ZERO, *time), None);
        }
    }
}
