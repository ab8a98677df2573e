// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delays between attempts.

use std::time::{Duration, Instant};

/// Time after which an attempt counts as successful.
const STABLE: Duration = Duration::from_secs(5);

/// Doubles the delay after each failed attempt; begins anew after a successful one.
pub struct Backoff {
    first: Duration,
    most: Duration,
    next: Duration,
}

impl Backoff {
    pub fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, next: first }
    }

    /// Returns the delay after an attempt that worked since `begin`; none: it never worked.
    pub fn after(&mut self, begin: Option<Instant>) -> Duration {
        if begin.is_some_and(|begin| begin.elapsed() >= STABLE) {
            self.next = self.first;
        }
        let delay = self.next;
        self.next = (self.next * 2).min(self.most);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_most_and_begins_anew() {
        let seconds = Duration::from_secs;
        let mut backoff = Backoff::new(seconds(1), seconds(5));
        let delays = [1, 2, 4, 5, 5].map(seconds);
        assert_eq!(delays.map(|_| backoff.after(None)), delays);
        assert_eq!(backoff.after(Some(Instant::now())), seconds(5));
        let long_ago = Instant::now().checked_sub(seconds(6));
        assert_eq!(backoff.after(long_ago), seconds(1));
        assert_eq!(backoff.after(None), seconds(2));
    }
}
