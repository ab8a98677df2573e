// SPDX-License-Identifier: MIT OR Apache-2.0

//! Shrinking: makes the choices of a failed run fewer and simpler, as long as it fails in the same
//! way.
//!
//! A list of choices is simpler than another if it is shorter, or as long and smaller at the first
//! difference. Each change that keeps the failure's kind and gives a simpler list is kept.

use crate::{
    choices::Choices,
    run::{Report, Run, World},
};
use std::time::{Duration, Instant};

/// A failure that was made smaller.
#[derive(Debug)]
pub struct Shrunk {
    /// The choices.
    pub choices: Vec<u32>,
    /// Runs tried.
    pub runs: u64,
}

/// Makes the choices of a failed run simpler, within a limit of real time.
///
/// `kind` is that of the failure (see `Failure::kind`). Returns the given choices if no run with
/// simpler ones fails in this way.
pub fn shrink(world: &dyn World, choices: Vec<u32>, kind: &str, limit: Duration) -> Shrunk {
    let mut search = Search { world, kind, end: Instant::now() + limit, best: choices, runs: 0 };
    while !search.is_over() {
        let before = search.best.clone();
        search.shorten();
        search.remove_chunks();
        search.clear_chunks();
        search.decrease();
        if search.best == before {
            break;
        }
    }
    Shrunk { choices: search.best, runs: search.runs }
}

struct Search<'a> {
    world: &'a dyn World,
    kind: &'a str,
    end: Instant,
    best: Vec<u32>,
    runs: u64,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }

    /// Tries a list, and keeps the choices of its run if it fails in the same way and they are
    /// simpler. Returns whether they were kept.
    fn try_list(&mut self, list: Vec<u32>) -> bool {
        if self.is_over() {
            return false;
        }
        self.runs += 1;
        let report = self.world.run(Run::new(Choices::listed(list)));
        if !fails_as(&report, self.kind) {
            return false;
        }
        let made = report.choices.list();
        let is_simpler = (made.len(), &made) < (self.best.len(), &self.best);
        if is_simpler {
            self.best = made;
        }
        is_simpler
    }

    /// Drops the end: behind it, all choices are 0.
    fn shorten(&mut self) {
        let mut kept = self.best.len() / 2;
        while kept < self.best.len() {
            if !self.try_list(self.best[..kept].to_vec()) {
                kept += (self.best.len() - kept).div_ceil(2);
            } else {
                kept = self.best.len() / 2;
            }
        }
    }

    /// Removes chunks, from large to single choices, from the end to the start.
    fn remove_chunks(&mut self) {
        self.for_each_chunk(|search, start, size| {
            let mut list = search.best.clone();
            list.drain(start..start + size);
            search.try_list(list)
        });
    }

    /// Sets chunks to 0.
    fn clear_chunks(&mut self) {
        self.for_each_chunk(|search, start, size| {
            let mut list = search.best.clone();
            list[start..start + size].fill(0);
            search.try_list(list)
        });
    }

    fn for_each_chunk(&mut self, mut change: impl FnMut(&mut Self, usize, usize) -> bool) {
        let mut size = self.best.len() / 2;
        while size > 0 && !self.is_over() {
            let mut end = self.best.len();
            while end >= size && !self.is_over() {
                if change(self, end - size, size) {
                    // The same place has other choices now.
                    end = end.min(self.best.len());
                } else {
                    end -= size;
                }
            }
            size /= 2;
        }
    }

    /// Decreases each choice by itself: to half as long as that helps, then by one.
    fn decrease(&mut self) {
        for at in (0..self.best.len()).rev() {
            while let Some(&value) = self.best.get(at) {
                let with = |value| {
                    let mut list = self.best.clone();
                    list[at] = value;
                    list
                };
                let (half, less) = (with(value / 2), with(value.saturating_sub(1)));
                if value == 0 || !(self.try_list(half) || self.try_list(less)) {
                    break;
                }
            }
        }
    }
}

fn fails_as(report: &Report, kind: &str) -> bool {
    report.failure().is_some_and(|failure| failure.kind() == kind)
}
