// SPDX-License-Identifier: MIT OR Apache-2.0

//! Short waits: spinning before a sleep, and polling at growing intervals.

use crate::sys::{Timeout, allowed_cores, involuntary_switches};
use std::{
    cell::Cell,
    hint::spin_loop,
    time::{Duration, Instant},
};

/// Longest spin. A sleep and its wake-up take some tens of microseconds on both sides, so a shorter
/// spin is cheaper.
const MOMENT: Duration = Duration::from_micros(60);
/// Two polls of a spin are less than a microsecond apart, and an interrupt takes some tens; a
/// longer gap means that another thread or another virtual machine had the core.
const GAP: Duration = Duration::from_micros(100);
/// Shortest and longest time without spinning after a sign of contention.
const SHORTEST_REST: Duration = Duration::from_millis(50);
const LONGEST_REST: Duration = Duration::from_secs(2);

/// A spin before a sleep, or in place of one. Use it without holding a lock: the awaited thread may
/// need that lock.
///
/// It ends at once if the thread is allowed one core only, or if a recent spin of the thread shared
/// its core with another thread: every microsecond of spinning would delay the awaited thread.
#[derive(Debug)]
pub(crate) struct Spin {
    longest: Duration,
    begun: Option<Begun>,
    over: bool,
}

#[derive(Clone, Copy, Debug)]
struct Begun {
    at: Instant,
    last_poll: Instant,
    switches: u64,
}

thread_local! {
    static RECENT: Cell<Contention> = const { Cell::new(Contention::NONE) };
}

impl Default for Spin {
    /// A spin before a sleep.
    fn default() -> Self {
        Self::of(MOMENT)
    }
}

impl Spin {
    /// A spin of this duration at most.
    pub fn of(longest: Duration) -> Self {
        Self { longest, begun: None, over: false }
    }

    /// Returns whether this thread may spin now.
    pub fn is_allowed() -> bool {
        RECENT.get().allows_spin(Instant::now()) && allowed_cores() >= 2
    }

    /// Ends the spin because the awaited event has come. If the thread was not alone on its core,
    /// it rests from spins.
    pub fn finish(self) {
        let now = Instant::now();
        let was_alone = self.begun.is_some_and(|begun| !self.over && begun.was_alone(now));
        RECENT.set(RECENT.get().after_spin(now, was_alone));
    }

    /// Returns whether to poll once more before sleeping. Pauses for about a microsecond if so.
    pub fn again(&mut self) -> bool {
        let goes_on = !self.over && self.goes_on(Instant::now());
        self.over = !goes_on;
        if goes_on {
            (0..16).for_each(|_| spin_loop());
        }
        goes_on
    }

    /// Returns whether the spin has ended, so that [`Spin::again`] returns false.
    pub fn is_over(&self) -> bool {
        self.over
    }

    fn goes_on(&mut self, now: Instant) -> bool {
        let Some(begun) = &mut self.begun else {
            if !RECENT.get().allows_spin(now) || allowed_cores() < 2 {
                return false;
            }
            self.begun = Some(Begun { at: now, last_poll: now, switches: involuntary_switches() });
            return true;
        };
        if !begun.had_gap(now) && now.duration_since(begun.at) < self.longest {
            begun.last_poll = now;
            return true;
        }
        RECENT.set(RECENT.get().after_spin(now, begun.was_alone(now)));
        false
    }
}

impl Begun {
    fn had_gap(&self, now: Instant) -> bool {
        now.duration_since(self.last_poll) > GAP
    }

    fn was_alone(&self, now: Instant) -> bool {
        !self.had_gap(now) && involuntary_switches() == self.switches
    }
}

/// The signs of contention in recent spins of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Contention {
    /// No spin before this time.
    rest: Option<Instant>,
    /// Duration of the rest after the next sign.
    next: Duration,
}

impl Contention {
    const NONE: Self = Self { rest: None, next: SHORTEST_REST };

    fn allows_spin(self, now: Instant) -> bool {
        self.rest.is_none_or(|rest| now >= rest)
    }

    /// The state after a spin that ended now, alone on its core or not.
    fn after_spin(self, now: Instant, was_alone: bool) -> Self {
        if was_alone {
            return Self::NONE;
        }
        Self { rest: now.checked_add(self.next), next: (self.next * 2).min(LONGEST_REST) }
    }
}

/// The first polling interval.
const FASTEST: Duration = Duration::from_micros(50);

/// Polling of GPU progress, which sends no notification: after 50 µs, then at growing intervals up
/// to a millisecond.
#[derive(Debug)]
pub(crate) struct Backoff {
    began: Instant,
    /// Divisor of the elapsed time that yields the next interval.
    part: u32,
}

impl Backoff {
    /// Maximum polling interval while a caller is blocked.
    pub const SLOWEST: Duration = Duration::from_millis(1);

    /// For a blocked caller: it oversleeps by at most a sixteenth.
    pub fn of_a_waiter() -> Self {
        Self { began: Instant::now(), part: 16 }
    }

    /// For a background thread: at doubling intervals.
    pub fn of_a_watch() -> Self {
        Self { began: Instant::now(), part: 1 }
    }

    /// Time of the next poll.
    pub fn next(&self) -> Timeout {
        Timeout::after(Some(self.interval()))
    }

    /// Returns whether polls have become so rare that a wake-up is worth its cost.
    pub fn is_slow(&self) -> bool {
        self.interval() > FASTEST * 2
    }

    fn interval(&self) -> Duration {
        (self.began.elapsed() / self.part).clamp(FASTEST, Self::SLOWEST)
    }

    /// Restarts at the first interval, after progress.
    pub fn reset(&mut self) {
        self.began = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    #[test]
    fn spin_on_a_single_core_ends_at_once() {
        std::thread::spawn(|| {
            let allowed = sched_getaffinity(None).unwrap();
            let mut one = CpuSet::new();
            one.set((0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core)).unwrap());
            sched_setaffinity(None, &one).unwrap();
            let mut spin = Spin::default();
            assert!(!spin.again() && spin.is_over());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn spin_ends_and_stays_over() {
        for mut spin in [Spin::default(), Spin::of(Duration::from_millis(1))] {
            while spin.again() {}
            assert!(spin.is_over() && !spin.again());
        }
    }

    #[test]
    fn finished_spin_with_a_gap_forbids_the_next() {
        std::thread::spawn(|| {
            if allowed_cores() < 2 {
                return;
            }
            let mut spin = Spin::of(Duration::from_secs(1));
            assert!(Spin::is_allowed() && spin.again());
            std::thread::sleep(GAP * 2);
            spin.finish();
            assert!(!Spin::is_allowed());
        })
        .join()
        .unwrap();
    }

    #[test]
    fn contention_rests_longer_each_time_until_a_clean_spin() {
        let now = Instant::now();
        let first = Contention::NONE.after_spin(now, false);
        assert!(!first.allows_spin(now) && first.allows_spin(now + SHORTEST_REST));
        let second = first.after_spin(now, false);
        assert!(!second.allows_spin(now + SHORTEST_REST) && second.allows_spin(now + SHORTEST_REST * 2));
        let many = (0..100).fold(second, |contention, _| contention.after_spin(now, false));
        assert!(many.allows_spin(now + LONGEST_REST));
        assert_eq!(many.after_spin(now, true), Contention::NONE);
    }

    #[test]
    fn spin_with_a_gap_between_polls_forbids_the_next() {
        std::thread::spawn(|| {
            if allowed_cores() < 2 {
                return; // there is no spin to interrupt
            }
            let now = Instant::now();
            let mut spin = Spin::default();
            assert!(spin.goes_on(now));
            assert!(!spin.goes_on(now + GAP * 2));
            assert!(!Spin::default().goes_on(now + GAP * 2));
            assert!(Spin::default().goes_on(now + GAP * 2 + SHORTEST_REST));
        })
        .join()
        .unwrap();
    }
}
