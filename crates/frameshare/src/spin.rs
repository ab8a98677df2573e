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

/// Looks at a GPU's progress again after 50 µs, then at intervals that grow by a quarter, up to a millisecond: whoever
/// waits with it waits a quarter longer than needed at most.
#[derive(Debug)]
pub(crate) struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(Duration::from_micros(50))
    }
}

impl Backoff {
    /// When to look again.
    pub fn next(&mut self) -> Timeout {
        let now = self.0;
        self.0 = (now * 5 / 4).min(Duration::from_millis(1));
        Timeout::after(Some(now))
    }

    /// There was progress: the next look comes soon.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}
