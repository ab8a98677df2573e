// SPDX-License-Identifier: MIT OR Apache-2.0

//! Threads of this process that wait for readers.

use crate::Interrupt;
use std::mem;

/// Owns the list of waiting threads, and whether something has changed that they and the service
/// thread have to see.
///
/// Each waiting thread has a wake-up descriptor of its own: a slot or credit that one of them takes
/// may be the one that another waits for. The descriptor is open during the wait only, since a
/// process may have many exporters.
#[derive(Debug, Default)]
pub struct Waiters {
    /// Number of waiting threads.
    count: usize,
    interrupts: Vec<Interrupt>,
    /// Readers joined or left, or the set of readers with waiting messages changed.
    readers_changed: bool,
}

/// A waiting thread.
#[derive(Debug)]
pub struct Waiter {
    /// `None` if no descriptor was left: the thread polls.
    pub own: Option<Interrupt>,
}

impl Waiters {
    /// Adds a thread that begins to wait.
    pub fn begin(&mut self) -> Waiter {
        self.count += 1;
        let own = Interrupt::new().ok();
        self.interrupts.extend(own.clone());
        Waiter { own }
    }

    /// Removes a thread that no longer waits. Returns true if it was the last one.
    pub fn end(&mut self, waiter: &Waiter) -> bool {
        self.count -= 1;
        if let Some(own) = &waiter.own {
            self.interrupts.retain(|other| !other.is_the_same(own));
        }
        self.count == 0
    }

    /// Makes all waiting threads but this one check again.
    pub fn interrupt_others(&self, own: Option<&Interrupt>) {
        let is_own = |other: &Interrupt| own.is_some_and(|own| own.is_the_same(other));
        self.interrupts.iter().filter(|other| !is_own(other)).for_each(Interrupt::set);
    }

    /// Notes that readers joined or left, or that messages wait for other ones than before.
    pub fn note_change(&mut self) {
        self.readers_changed = true;
    }

    /// Returns whether something has changed since [`Waiters::take_change`] was last called.
    pub fn has_change(&self) -> bool {
        self.readers_changed
    }

    /// Returns the descriptors of all waiting threads if something has changed since the last call.
    pub fn take_change(&mut self) -> Option<Vec<Interrupt>> {
        mem::take(&mut self.readers_changed).then(|| self.interrupts.clone())
    }
}
