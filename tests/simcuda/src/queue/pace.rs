// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pace: the seed chooses for each item of a stream to run as early or as late as its order allows.
//!
//! An item that is held runs later than its order demands: when its time is over, or when a thread
//! of this process waits for it or for an item behind it. All other items run at once when their
//! dependencies are complete; with the adversary such an item may be complete before the call that
//! queues it returns.

use crate::config;
use std::time::Duration;

/// Choices for one stream. They follow from the seed, the stream's index and the order of its
/// items, so that a seed reproduces them.
pub struct Pace {
    state: u64,
    /// Longest time for which an item is held. Zero: all items of this stream run at once.
    longest_us: u64,
}

/// The choice for one item.
#[derive(Clone, Copy, Debug)]
pub struct Hold {
    pub before: Duration,
    /// Hold in the middle of the item: it runs in two parts, so that a reader that does not wait
    /// finds a partly written frame.
    pub middle: Option<Duration>,
}

impl Hold {
    pub fn is_none(&self) -> bool {
        self.before.is_zero() && self.middle.is_none()
    }
}

impl Pace {
    pub fn new(index: u64) -> Pace {
        let config = config::get();
        let mut pace = Pace { state: config.seed ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15), longest_us: 0 };
        // Fast and slow streams are mixed, to expose code that works only between streams of equal
        // speed.
        pace.longest_us = match pace.next() % 4 {
            0 => 0,
            1 => config.delay_us / 4,
            2 => config.delay_us,
            _ => config.delay_us * 3,
        };
        pace
    }

    fn next(&mut self) -> u64 {
        // splitmix64
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// Chooses for the next item.
    pub fn choose(&mut self) -> Hold {
        let before = self.time();
        let middle = (self.longest_us > 0 && self.next().is_multiple_of(4)).then(|| self.time());
        Hold { before, middle }
    }

    fn time(&mut self) -> Duration {
        let draw = self.next();
        // The adversary holds fewer items for longer, and some for much longer: the items behind
        // them are late with them.
        let (one_in, longest_us) = match config::get().adversary {
            false => (2, self.longest_us),
            true if draw.is_multiple_of(256) => (8, 8 * self.longest_us),
            true => (8, self.longest_us),
        };
        if self.longest_us == 0 || !draw.is_multiple_of(one_in) {
            return Duration::ZERO;
        }
        Duration::from_micros((draw >> 8) % (longest_us + 1))
    }
}
