//! Spinning for a moment before sleeping.

use std::time::{Duration, Instant};

/// To sleep and be woken takes some tens of microseconds; to spin for less than that is cheaper for both sides.
const MOMENT: Duration = Duration::from_micros(20);

/// A wait that spins for a moment before it sleeps.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    until: Option<Instant>,
}

impl Spin {
    /// Whether to look once more before sleeping.
    pub fn again(&mut self) -> bool {
        let now = Instant::now();
        std::hint::spin_loop();
        now < *self.until.get_or_insert(now + MOMENT)
    }
}
