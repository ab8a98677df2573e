// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of a running stream as seen by the monitoring thread.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use frameshare_tests::tally::Tally;

/// Observable state of a stream.
#[derive(Default)]
pub struct Watched(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// Current operation and its start, unless the stream waits for other streams.
    doing: Option<(String, Instant)>,
    published: u64,
    tally: Tally,
}

impl Watched {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the beginning of an operation.
    pub fn begins(&self, what: impl Into<String>) {
        self.seen().doing = Some((what.into(), Instant::now()));
    }

    /// Marks that the stream waits for others.
    pub fn rests(&self) {
        self.seen().doing = None;
    }

    /// Adds published frames.
    pub fn published(&self, frames: u64) {
        self.seen().published += frames;
    }

    /// Counts an event.
    pub fn count(&self, event: impl FnOnce(&mut Tally)) {
        event(&mut self.seen().tally);
    }

    /// Returns the totals of this stream plus `others`.
    pub fn plus(&self, others: (u64, Tally)) -> (u64, Tally) {
        let seen = self.seen();
        (others.0 + seen.published, others.1.plus(&seen.tally))
    }

    /// Returns the current operation if it has taken longer than `limit`.
    pub fn hangs(&self, limit: Duration) -> Option<String> {
        let seen = self.seen();
        seen.doing.as_ref().filter(|(_, since)| since.elapsed() > limit).map(|(what, _)| what.clone())
    }
}
