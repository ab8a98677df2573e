//! A stream as it is seen from outside, while it plays.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use frameshare_tests::tally::Tally;

/// What a stream lets be seen of it.
#[derive(Default)]
pub struct Watched(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// What it is doing and since when, unless it waits for other streams.
    doing: Option<(String, Instant)>,
    published: u64,
    tally: Tally,
}

impl Watched {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It begins to do this.
    pub fn begins(&self, what: impl Into<String>) {
        self.seen().doing = Some((what.into(), Instant::now()));
    }

    /// It waits for others.
    pub fn rests(&self) {
        self.seen().doing = None;
    }

    /// It has published so many frames more.
    pub fn published(&self, frames: u64) {
        self.seen().published += frames;
    }

    /// Something has happened that counts.
    pub fn count(&self, event: impl FnOnce(&mut Tally)) {
        event(&mut self.seen().tally);
    }

    /// What it has come to, together with `others`.
    pub fn plus(&self, others: (u64, Tally)) -> (u64, Tally) {
        let seen = self.seen();
        (others.0 + seen.published, others.1.plus(&seen.tally))
    }

    /// What it has been doing for longer than that.
    pub fn hangs(&self, limit: Duration) -> Option<String> {
        let seen = self.seen();
        seen.doing.as_ref().filter(|(_, since)| since.elapsed() > limit).map(|(what, _)| what.clone())
    }
}
