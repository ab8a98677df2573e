// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers of handles.
//!
//! By default a number is never used again, so that the handle of a destroyed object is an error.
//! With the adversary, the object that is created next gets the handle of the one that was
//! destroyed last, as can happen with the real driver, whose handles are pointers.

use crate::config;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// Returns a number that was never a handle before.
pub fn new() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0x51c0_0000_0010);
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

/// The handles of one kind of object.
pub struct Handles(Mutex<Vec<usize>>);

impl Handles {
    pub const fn new() -> Handles {
        Handles(Mutex::new(Vec::new()))
    }

    fn destroyed(&self) -> MutexGuard<'_, Vec<usize>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the handle of an object that is about to be created.
    pub fn take(&self) -> usize {
        self.destroyed().pop().unwrap_or_else(new)
    }

    /// Makes the handle of a destroyed object available for the next one. Called when no table
    /// names the object any more.
    pub fn release(&self, handle: usize) {
        if config::get().adversary {
            self.destroyed().push(handle);
        }
    }
}
