// SPDX-License-Identifier: MIT OR Apache-2.0

//! A word that tasks share. Each access is a preemption point; a dying task writes nothing.

use crate::task::{is_dying, observe, step};
use std::cell::Cell;

/// A shared word.
#[derive(Debug, Default)]
pub struct Word(Cell<u64>);

impl Word {
    /// Reads the word, after a preemption point.
    pub fn load(&self, what: &'static str) -> u64 {
        step(what);
        let value = self.0.get();
        observe(value);
        value
    }

    /// Writes the word, after a preemption point.
    pub fn store(&self, what: &'static str, value: u64) {
        step(what);
        if !is_dying() {
            self.0.set(value);
        }
    }

    /// Reads the word without a preemption point: for conditions and checks.
    pub fn peek(&self) -> u64 {
        self.0.get()
    }
}
