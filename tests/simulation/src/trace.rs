// SPDX-License-Identifier: MIT OR Apache-2.0

//! Trace of a run: readable lines, kept only if the run is traced.
//!
//! The trace of a thread is off unless a run turns it on; lines are then not even formatted. Only
//! the last lines of a long run are kept.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};

/// Lines kept of a run.
const KEPT: usize = 100_000;

thread_local! {
    static IS_ON: Cell<bool> = const { Cell::new(false) };
    static LINES: RefCell<VecDeque<String>> = const { RefCell::new(VecDeque::new()) };
}

/// Turns the trace of this thread on or off, and drops the lines that it has.
pub(crate) fn start(is_on: bool) {
    IS_ON.set(is_on);
    LINES.with_borrow_mut(VecDeque::clear);
}

/// Turns the trace of this thread off and returns its lines.
pub(crate) fn take() -> Vec<String> {
    IS_ON.set(false);
    LINES.take().into()
}

/// Whether this thread keeps lines.
#[inline]
pub fn is_on() -> bool {
    IS_ON.get()
}

/// Adds a line.
pub(crate) fn push(line: String) {
    LINES.with_borrow_mut(|lines| {
        if lines.len() == KEPT {
            lines.pop_front();
        }
        lines.push_back(line);
    });
}
