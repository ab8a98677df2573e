// SPDX-License-Identifier: MIT OR Apache-2.0

//! Interrupts of the sink's waits.

use crate::sync::lock;
use frameshare::Interrupt;
use std::sync::{Condvar, Mutex, PoisonError};

/// The interrupt of a sink's waits, which `GstBaseSink` and the property set for different reasons.
///
/// The waits of `render` release the preroll lock. So `unlock`, which interrupts them, and
/// `unlock_stop`, which ends that, may both be called before the waiting thread runs: the latter
/// waits until the thread has left its wait, and then finds the lock taken.
pub(super) struct Waiting {
    interrupt: Interrupt,
    state: Mutex<State>,
    /// Signaled when a wait ends.
    ended: Condvar,
}

/// Guards the interrupt: one cause must not clear it while the other holds.
#[derive(Default)]
struct State {
    /// `GstBaseSink` has called `unlock` and not yet `unlock_stop`.
    unlocked: bool,
    /// `render` or `wait_event` waits.
    waits: bool,
    /// It waits for a reader.
    for_reader: bool,
}

/// A wait of `render` or `wait_event`, which ends when this is dropped.
pub(super) struct Wait<'a>(&'a Waiting);

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        (state.waits, state.for_reader) = (false, false);
        if !state.unlocked {
            self.0.interrupt.clear();
        }
        self.0.ended.notify_all();
    }
}

impl Waiting {
    pub(super) fn new(interrupt: Interrupt) -> Self {
        Self { interrupt, state: Mutex::default(), ended: Condvar::new() }
    }

    /// Interrupts all waits until `unlock_stop`.
    pub(super) fn unlock(&self) {
        let mut state = lock(&self.state);
        state.unlocked = true;
        self.interrupt.set();
    }

    pub(super) fn unlock_stop(&self) {
        let state = lock(&self.state);
        let ended = self.ended.wait_while(state, |state| state.unlocked && state.waits);
        let mut state = ended.unwrap_or_else(PoisonError::into_inner);
        state.unlocked = false;
        self.interrupt.clear();
    }

    /// Makes the wait for a reader check the property again. Other waits continue.
    pub(super) fn property_changed(&self) {
        if lock(&self.state).for_reader {
            self.interrupt.set();
        }
    }

    /// Begins a wait, with the preroll lock held.
    pub(super) fn begin(&self, for_reader: bool) -> Wait<'_> {
        let mut state = lock(&self.state);
        (state.waits, state.for_reader) = (true, for_reader);
        Wait(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        sync::mpsc::{RecvTimeoutError, channel},
        thread,
        time::Duration,
    };

    #[test]
    fn interrupt_stays_until_the_waiting_thread_has_seen_it() {
        let interrupt = Interrupt::new().unwrap();
        let waiting = Waiting::new(interrupt.clone());
        let wait = waiting.begin(false);
        waiting.unlock();
        thread::scope(|scope| {
            let (stopped, stops) = channel();
            let waiting = &waiting;
            scope.spawn(move || {
                waiting.unlock_stop();
                stopped.send(()).unwrap();
            });
            let early = stops.recv_timeout(Duration::from_millis(50));
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "the thread still waits");
            assert!(interrupt.is_set());
            drop(wait);
            stops.recv_timeout(Duration::from_secs(60)).unwrap();
        });
        assert!(!interrupt.is_set());
        // Nobody waits.
        waiting.unlock();
        waiting.unlock_stop();
        assert!(!interrupt.is_set());
    }

    #[test]
    fn property_ends_the_wait_for_a_reader_alone() {
        let interrupt = Interrupt::new().unwrap();
        let waiting = Waiting::new(interrupt.clone());
        for for_reader in [false, true] {
            let wait = waiting.begin(for_reader);
            waiting.property_changed();
            assert_eq!(interrupt.is_set(), for_reader);
            drop(wait);
            assert!(!interrupt.is_set());
        }
    }
}
