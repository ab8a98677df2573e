//! Waiting for what nobody announces: spinning for a moment before sleeping, and looking again at growing intervals.

use crate::sys::Timeout;
use std::time::{Duration, Instant};

/// To sleep and be woken takes some tens of microseconds; to spin for less than that is cheaper for both sides.
const MOMENT: Duration = Duration::from_micros(60);

/// A wait that spins for a moment before it sleeps.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    until: Option<Instant>,
}

impl Spin {
    /// Whether to look once more before sleeping.
    pub fn again(&mut self) -> bool {
        let now = Instant::now();
        // Where more run than there are cores, whoever is waited for needs this one.
        std::thread::yield_now();
        now < *self.until.get_or_insert(now + MOMENT)
    }
}

/// How soon to look again at first.
const FASTEST: Duration = Duration::from_micros(50);

/// Looks again at a GPU's progress, which nobody announces: after 50 µs, and later the rarer the longer it takes, up to a
/// millisecond.
#[derive(Debug)]
pub(crate) struct Backoff {
    began: Instant,
    /// Which part of the time since is slept through at once.
    part: u32,
}

impl Backoff {
    /// How soon somebody looks at the latest who waits.
    pub const SLOWEST: Duration = Duration::from_millis(1);
    /// How soon somebody looks who is in no hurry.
    pub const UNHURRIED: Duration = Duration::from_millis(2);

    /// For a caller that waits for nothing else: it oversleeps by a sixteenth.
    pub fn of_a_waiter() -> Self {
        Self { began: Instant::now(), part: 16 }
    }

    /// For a thread that looks on behalf of whoever may come: at doubling intervals.
    pub fn of_a_watch() -> Self {
        Self { began: Instant::now(), part: 1 }
    }

    /// When to look again.
    pub fn next(&self) -> Timeout {
        Timeout::after(Some(self.interval()))
    }

    /// The same for somebody who is in no hurry.
    pub fn next_unhurried() -> Timeout {
        Timeout::after(Some(Self::UNHURRIED))
    }

    /// Whether looks have become so rare that it is worth the while to be told.
    pub fn is_slow(&self) -> bool {
        self.interval() > FASTEST * 2
    }

    fn interval(&self) -> Duration {
        (self.began.elapsed() / self.part).clamp(FASTEST, Self::SLOWEST)
    }

    /// There was progress: the next look comes soon.
    pub fn reset(&mut self) {
        self.began = Instant::now();
    }
}
