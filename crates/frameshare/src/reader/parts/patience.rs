// SPDX-License-Identifier: MIT OR Apache-2.0

//! Patience of a reader that holds all frames that it may.

use std::time::Duration;

/// Time after which a wait without limit ends with
/// [`ReadError::Held`](crate::reader::ReadError::Held).
pub const HELD_PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });

/// Owns the time of waits without limit in which a reader held all frames that it may, since its
/// last frame. It does not know the frames, nor the time.
///
/// The order: [`Patience::left`] before a wait, and [`Patience::note`] after it.
#[derive(Debug, Default)]
pub struct Patience {
    held_for: Duration,
}

impl Patience {
    /// Maximum time of the next wait.
    pub fn left(&self) -> Duration {
        HELD_PATIENCE.saturating_sub(self.held_for)
    }

    /// Adds a wait in which the reader held all frames from its begin to its end; `None` if it was
    /// another one, and at the end of the patience: it begins anew.
    pub fn note(&mut self, held: Option<Duration>) {
        self.held_for = held.map_or(Duration::ZERO, |held| self.held_for.saturating_add(held));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_share_patience_until_a_frame_is_dropped() {
        let mut patience = Patience::default();
        assert_eq!(patience.left(), HELD_PATIENCE);
        patience.note(Some(HELD_PATIENCE / 4));
        patience.note(Some(HELD_PATIENCE / 4));
        assert_eq!(patience.left(), HELD_PATIENCE / 2);
        patience.note(Some(HELD_PATIENCE));
        assert_eq!(patience.left(), Duration::ZERO);
        patience.note(None);
        assert_eq!(patience.left(), HELD_PATIENCE);
    }
}
