// SPDX-License-Identifier: MIT OR Apache-2.0

//! Patience of a reader that holds all frames that it may.

use std::time::Duration;

/// Owns the time of waits without limit in which a reader held all frames that it may, since its
/// last frame. It does not know the frames, nor the time.
///
/// The order: [`Patience::left`] before a wait, and [`Patience::note`] after it.
#[derive(Debug)]
pub struct Patience {
    /// Time after which such a wait ends.
    limit: Duration,
    held_for: Duration,
}

impl Patience {
    /// The patience of a reader whose wait ends after this time.
    #[inline]
    pub fn new(limit: Duration) -> Self {
        Self { limit, held_for: Duration::ZERO }
    }

    /// Maximum time of the next wait.
    #[inline]
    pub fn left(&self) -> Duration {
        self.limit.saturating_sub(self.held_for)
    }

    /// Adds a wait in which the reader held all frames from its begin to its end; `None` if it was
    /// another one, and at the end of the patience: it begins anew.
    #[inline]
    pub fn note(&mut self, held: Option<Duration>) {
        self.held_for = held.map_or(Duration::ZERO, |held| self.held_for.saturating_add(held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(5);

    #[test]
    fn waits_share_patience_until_a_frame_is_dropped() {
        let mut patience = Patience::new(LIMIT);
        assert_eq!(patience.left(), LIMIT);
        patience.note(Some(LIMIT / 4));
        patience.note(Some(LIMIT / 4));
        assert_eq!(patience.left(), LIMIT / 2);
        patience.note(Some(LIMIT));
        assert_eq!(patience.left(), Duration::ZERO);
        patience.note(None);
        assert_eq!(patience.left(), LIMIT);
    }
}
