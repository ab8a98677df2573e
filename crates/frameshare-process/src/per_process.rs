// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of one process, of which a forked child has its own.
//!
//! A child of fork(2) has a copy of its parent's memory, and the calling thread alone. A lock that
//! another thread held at that moment stays locked in the child, a value that another thread was
//! making is never made, and state that counts threads counts some that the child lacks.
//!
//! # Safety
//!
//! A value is leaked, so that references to it stay valid for the rest of the process.
#![allow(unsafe_code)]

use crate::process_number;
use std::{
    ops::Deref,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// A value that each process makes at its first use, and never drops.
///
/// Threads that use it first at the same time may each make a value; one is kept, the others are
/// dropped. Processes are told apart by [`process_number`].
pub struct PerProcess<T> {
    make: fn() -> T,
    current: AtomicPtr<Made<T>>,
}

struct Made<T> {
    process: u64,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    /// A value that `make` makes in each process that uses it.
    pub const fn new(make: fn() -> T) -> Self {
        Self { make, current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value of this process.
    pub fn get(&self) -> &'static T {
        let process = process_number();
        let mut current = self.current.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or a value that is never dropped.
            if let Some(made) = unsafe { current.as_ref() }
                && made.process == process
            {
                return &made.value;
            }
            let new = Box::into_raw(Box::new(Made { process, value: (self.make)() }));
            match self.current.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => current = new,
                Err(other) => {
                    // SAFETY: made above, and never shared.
                    drop(unsafe { Box::from_raw(new) });
                    current = other;
                }
            }
        }
    }
}

impl<T: Send + Sync + 'static> Deref for PerProcess<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{in_child, with_same_id};
    use std::{
        collections::HashSet,
        sync::{Barrier, Mutex},
        thread,
    };

    #[test]
    fn panic_of_child_is_a_failure() {
        assert_eq!(in_child(|| panic!("on purpose")), Some(false));
    }

    #[test]
    fn forked_child_begins_with_value_of_its_own() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new(|| Mutex::new(7));
        *VALUE.lock().unwrap() = 8;
        let locked = VALUE.lock().unwrap();
        let child = || {
            let first = *VALUE.lock().unwrap();
            *VALUE.lock().unwrap() = 9;
            // A grandchild's is neither its parent's nor its grandparent's.
            let next = in_child(|| *VALUE.lock().unwrap() == 7);
            first == 7 && *VALUE.lock().unwrap() == 9 && next == Some(true)
        };
        assert_eq!(in_child(child), Some(true));
        assert_eq!(*locked, 8);
    }

    #[test]
    fn forked_child_of_same_id_begins_with_value_of_its_own() {
        static VALUE: PerProcess<Mutex<u32>> = PerProcess::new(|| Mutex::new(7));
        with_same_id(
            "forked_child_of_same_id_begins_with_value_of_its_own",
            || *VALUE.lock().unwrap() = 8,
            || *VALUE.lock().unwrap() == 7,
        );
    }

    /// Negative control: the child of a process that forks with a lock held waits for it.
    #[test]
    fn lock_that_is_not_per_process_stays_locked_in_child() {
        static VALUE: Mutex<u32> = Mutex::new(7);
        let locked = VALUE.lock().unwrap();
        assert_eq!(in_child(|| VALUE.try_lock().is_ok()), Some(false));
        drop(locked);
    }

    #[test]
    fn threads_that_begin_together_share_one_value() {
        // Statics, so that what they keep is no leak.
        static VALUES: [PerProcess<u32>; 200] = [const { PerProcess::new(|| 7) }; 200];
        let start = Barrier::new(4);
        let addresses = || {
            start.wait();
            VALUES.iter().map(|value| ptr::from_ref(value.get()) as usize).collect::<Vec<_>>()
        };
        let all = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(addresses)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<HashSet<_>>()
        });
        assert_eq!(all.len(), 1);
    }
}
