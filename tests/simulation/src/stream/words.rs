// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pages that an exporter and a reader share. Each access to a word is a preemption point, but for
//! the words of descriptors if they are to be accessed whole.

use crate::{
    task::{is_dying, now, observe, step},
    time::Time,
};
use frameshare_queue::{Page, Word};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// A shared word.
#[derive(Debug)]
pub struct SharedWord {
    value: AtomicU64,
    /// Time of the last store.
    stored: AtomicU64,
    /// Loads and stores are no preemption points.
    is_quiet: bool,
}

impl SharedWord {
    fn step(&self, what: &'static str) {
        if !self.is_quiet {
            step(what);
        }
    }

    /// Time of the last store.
    pub fn stored(&self) -> Time {
        Time::from_nanos(self.stored.load(Ordering::Relaxed))
    }
}

impl Word for SharedWord {
    fn load(&self, _: Ordering) -> u64 {
        self.step("load");
        let value = self.value.load(Ordering::Relaxed);
        observe(value);
        value
    }

    fn store(&self, value: u64, _: Ordering) {
        self.step("store");
        if !is_dying() {
            self.value.store(value, Ordering::Relaxed);
            self.stored.store(now().as_nanos(), Ordering::Relaxed);
        }
    }

    fn swap(&self, value: u64, _: Ordering) -> u64 {
        step("swap");
        if is_dying() {
            return 0;
        }
        let former = self.value.swap(value, Ordering::Relaxed);
        observe(former);
        former
    }

    fn compare_exchange(&self, current: u64, new: u64, _: Ordering, _: Ordering) -> Result<u64, u64> {
        step("exchange");
        if is_dying() {
            return Err(!current);
        }
        let exchanged = self.value.compare_exchange(current, new, Ordering::Relaxed, Ordering::Relaxed);
        observe(exchanged.unwrap_or_else(|found| found));
        exchanged
    }

    fn fetch_add(&self, value: u64, _: Ordering) -> u64 {
        step("add");
        if is_dying() { 0 } else { self.value.fetch_add(value, Ordering::Relaxed) }
    }

    /// All accesses are in one order: what the orderings forbid is loom's to show.
    fn fence(_: Ordering) {}
}

/// A page. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedPage(Arc<[SharedWord]>);

impl SharedPage {
    /// A page of so many bytes, all zero.
    pub fn new(bytes: usize) -> Self {
        Self::with_quiet_words(bytes, usize::MAX)
    }

    /// A page of so many bytes. Accesses to the words from this one on are no preemption points.
    pub fn with_quiet_words(bytes: usize, from: usize) -> Self {
        let word =
            |at| SharedWord { value: AtomicU64::new(0), stored: AtomicU64::new(0), is_quiet: at >= from };
        Self((0..bytes / 8).map(word).collect())
    }
}

impl Page for SharedPage {
    type Word = SharedWord;

    fn words(&self) -> &[SharedWord] {
        &self.0
    }
}
