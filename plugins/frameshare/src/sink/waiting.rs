// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interrupts of the sink's waits.

use crate::sync::lock;
use frameshare::Interrupt;
use std::sync::Mutex;

/// The interrupt of a sink's waits, which `GstBaseSink` and the property set for different reasons.
pub(super) struct Waiting {
    interrupt: Interrupt,
    state: Mutex<State>,
}

/// Guards the interrupt: one cause must not clear it while the other holds.
#[derive(Default)]
struct State {
    /// `GstBaseSink` has called `unlock` and not yet `unlock_stop`.
    unlocked: bool,
    /// `render` waits for a reader.
    for_reader: bool,
    /// The element changes to PAUSED, or has.
    is_paused: bool,
}

impl Waiting {
    pub(super) fn new(interrupt: Interrupt) -> Self {
        Self { interrupt, state: Mutex::default() }
    }

    /// Interrupts all waits until `unlock_stop`.
    pub(super) fn unlock(&self) {
        let mut state = lock(&self.state);
        state.unlocked = true;
        self.interrupt.set();
    }

    /// Returns whether `GstBaseSink` interrupts all waits.
    pub(super) fn is_unlocked(&self) -> bool {
        lock(&self.state).unlocked
    }

    pub(super) fn unlock_stop(&self) {
        let mut state = lock(&self.state);
        state.unlocked = false;
        self.interrupt.clear();
    }

    /// Begins a pause of the element, or ends it.
    pub(super) fn set_paused(&self, yes: bool) {
        lock(&self.state).is_paused = yes;
    }

    /// Returns whether the element is paused, or about to be.
    pub(super) fn is_paused(&self) -> bool {
        lock(&self.state).is_paused
    }

    /// Makes the wait for a reader check the property again. Other waits continue.
    pub(super) fn property_changed(&self) {
        if lock(&self.state).for_reader {
            self.interrupt.set();
        }
    }

    /// Begins a wait for a reader.
    pub(super) fn begin(&self) {
        lock(&self.state).for_reader = true;
    }

    /// Ends a wait for a reader; returns true if `GstBaseSink` interrupted it.
    pub(super) fn end(&self) -> bool {
        let mut state = lock(&self.state);
        state.for_reader = false;
        if !state.unlocked {
            self.interrupt.clear();
        }
        state.unlocked
    }
}
