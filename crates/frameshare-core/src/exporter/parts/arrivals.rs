// SPDX-License-Identifier: MIT OR Apache-2.0

//! Times of the publications: how long frames waited for them, and how far ahead of their
//! presentation times they were.

use frameshare_protocol::limits::{automatic_credit, automatic_queue};

/// Maximum of [`Arrivals::lead`]: a stream that is published faster than it plays has no use for
/// more.
const MAX_LEAD_NS: u64 = 1_000_000_000;

/// Duration of a window of [`Arrivals::lead`].
const WINDOW_NS: u64 = 2_000_000_000;

/// Minimum of the automatic credit of a reader that joins before the first frame of the format.
const CREDIT_BEFORE_FRAMES: u32 = 12;

/// Owns the times of the publications, and the credit and the queues that suit them. Each frame is
/// noted when it is published. Times are in ns of `CLOCK_MONOTONIC`.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// Time in ns that all frames together waited.
    waited: u64,
    /// The longest time in ns by which a frame of the present format was published ahead of its
    /// presentation time, in this window and the one before. A sink that synchronizes holds frames
    /// as long. Frames of a source that delivers them in bursts are at most so much ahead, too.
    /// `None` before the first frame.
    lead: Option<u64>,
    /// The same in this window.
    recent: u64,
    /// Begin of this window.
    since: u64,
}

impl Arrivals {
    /// Forgets the frames of another format.
    pub fn reset(&mut self) {
        (self.lead, self.recent) = (None, 0);
    }

    /// Notes a frame that is published now; returns whether the lead changes.
    #[inline]
    pub fn note(&mut self, arrived: Option<u64>, pts: Option<u64>, now: u64) -> bool {
        self.waited = self.waited.saturating_add(arrived.map_or(0, |arrived| now.saturating_sub(arrived)));
        let lead = pts.map_or(0, |pts| pts.saturating_sub(now)).min(MAX_LEAD_NS);
        let before = self.lead;
        if now.saturating_sub(self.since) >= WINDOW_NS {
            (self.since, self.lead) = (now, before.map(|_| self.recent));
            self.recent = 0;
        }
        self.recent = self.recent.max(lead);
        self.lead = self.lead.max(Some(self.recent));
        self.lead != before
    }

    /// Time in ns that all frames together waited.
    pub fn waited(&self) -> u64 {
        self.waited
    }

    /// Returns the credit that suits a stream with this duration of a frame in ns, if it is known:
    /// a high one before the first frame tells its lead.
    pub fn usual_credit(&self, period: Option<u64>) -> u32 {
        match self.lead {
            Some(lead) => automatic_credit(period, lead),
            None => automatic_credit(period, 0).max(CREDIT_BEFORE_FRAMES),
        }
    }

    /// Returns the maximum number of untaken frames of a `latest` reader that leaves it to the
    /// exporter, where a frame has this duration in ns, if it is known.
    pub fn automatic_queue(&self, period: Option<u64>) -> u32 {
        automatic_queue(period, self.lead.unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lead_is_the_longest_of_two_windows() {
        let mut arrivals = Arrivals::default();
        assert!(arrivals.note(None, None, 100));
        assert_eq!(arrivals.lead, Some(0));
        assert!(arrivals.note(Some(90), Some(150), 100));
        assert!(!arrivals.note(Some(80), Some(120), 100));
        assert!(!arrivals.note(Some(180), Some(20), 100), "a clock that stands, a frame that is late");
        assert_eq!((arrivals.lead, arrivals.waited), (Some(50), 30));
        arrivals.note(None, Some(u64::MAX), 0);
        assert_eq!(arrivals.lead, Some(MAX_LEAD_NS));
        // A frame that was far ahead counts no longer than two windows.
        arrivals.note(None, None, WINDOW_NS);
        assert_eq!(arrivals.lead, Some(MAX_LEAD_NS));
        assert!(arrivals.note(None, Some(2 * WINDOW_NS + 7), 2 * WINDOW_NS));
        assert_eq!(arrivals.lead, Some(7));
        arrivals.reset();
        assert_eq!(arrivals.lead, None);
    }
}
