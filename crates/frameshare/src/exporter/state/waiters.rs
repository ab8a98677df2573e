// SPDX-License-Identifier: MIT OR Apache-2.0

//! Threads of this process that wait for readers.

use super::State;
use crate::Interrupt;

/// The waiting threads, each with a wake-up descriptor of its own: a slot or credit that one of
/// them takes may be the one that another waits for. The descriptor is open during the wait only,
/// since a process may have many exporters.
#[derive(Debug, Default)]
pub struct Waiters {
    /// Number of waiting threads.
    count: usize,
    interrupts: Vec<Interrupt>,
}

impl Waiters {
    /// The wake-up descriptors of all waiting threads.
    pub fn interrupts(&self) -> Vec<Interrupt> {
        self.interrupts.clone()
    }

    fn enter(&mut self) -> Waiter {
        self.count += 1;
        let own = Interrupt::new().ok();
        self.interrupts.extend(own.clone());
        Waiter { own }
    }

    /// Returns true if it was the last one.
    fn leave(&mut self, waiter: &Waiter) -> bool {
        self.count -= 1;
        if let Some(own) = &waiter.own {
            self.interrupts.retain(|other| !other.is_the_same(own));
        }
        self.count == 0
    }

    fn interrupt_others(&self, own: Option<&Interrupt>) {
        let is_own = |other: &Interrupt| own.is_some_and(|own| own.is_the_same(other));
        self.interrupts.iter().filter(|other| !is_own(other)).for_each(Interrupt::set);
    }
}

/// A waiting thread.
#[derive(Debug)]
pub struct Waiter {
    /// `None` if no descriptor was left: the thread polls.
    pub own: Option<Interrupt>,
}

impl State {
    /// Registers a thread that begins to wait.
    pub fn begin_wait(&mut self) -> Waiter {
        self.waiters.enter()
    }

    /// Removes a thread that no longer waits. After the last one, readers need not send wake-ups.
    pub fn end_wait(&mut self, waiter: &Waiter) {
        if self.waiters.leave(waiter) {
            self.end_waits();
        }
    }

    /// Makes all other waiting threads check again.
    pub fn interrupt_other_waits(&self, own: Option<&Interrupt>) {
        self.waiters.interrupt_others(own);
    }
}
