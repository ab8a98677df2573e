// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of one process, of which a forked child has its own.
//!
//! A child of fork(2) has a copy of its parent's memory, and the calling thread alone. A lock that
//! another thread held at that moment stays locked in the child, and state that counts threads
//! counts some that the child lacks. So each lock in a static of the engine is [`PerProcess`],
//! which `tests/tests/layers.rs` checks.
//!
//! # Safety
//!
//! A value is leaked, so that references to it stay valid for the rest of the process.
#![allow(unsafe_code)]

use super::process_id;
use std::{
    fmt,
    ops::Deref,
    ptr,
    sync::atomic::{AtomicPtr, Ordering},
};

/// A value that each process makes at its first use. Values are never dropped.
///
/// Threads that use it first at the same time may each make a value, of which one is kept.
pub struct PerProcess<T> {
    make: fn() -> T,
    current: AtomicPtr<Made<T>>,
}

struct Made<T> {
    process: u32,
    value: T,
}

impl<T: Send + Sync + 'static> PerProcess<T> {
    pub const fn new(make: fn() -> T) -> Self {
        Self { make, current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the value of this process.
    pub fn get(&self) -> &'static T {
        let process = process_id();
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

impl<T> fmt::Debug for PerProcess<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerProcess").finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    use std::{
        collections::HashSet,
        sync::Mutex,
        thread,
        time::{Duration, Instant},
    };

    /// Runs `child` in a forked child. Returns its result; `None` if it does not return.
    pub(crate) fn in_child(child: impl FnOnce() -> bool) -> Option<bool> {
        // SAFETY: the child runs `child` alone, which uses no lock of the test's other threads; the
        // C library makes its allocator usable after a fork.
        let pid = match unsafe { libc::fork() } {
            -1 => panic!("no child: {}", std::io::Error::last_os_error()),
            0 => {
                let status = i32::from(!child());
                // SAFETY: it ends the process without the destructors of what the parent has made.
                unsafe { libc::_exit(status) }
            }
            pid => Pid::from_raw(pid).unwrap(),
        };
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if let Some((_, status)) = waitpid(Some(pid), WaitOptions::NOHANG).unwrap() {
                return Some(status.exit_status() == Some(0));
            }
            thread::sleep(Duration::from_millis(1));
        }
        kill_process(pid, Signal::KILL).unwrap();
        waitpid(Some(pid), WaitOptions::empty()).unwrap();
        None
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
        for _ in 0..200 {
            let value = PerProcess::new(|| 7_u32);
            let addresses = thread::scope(|scope| {
                let get = || ptr::from_ref(value.get()) as usize;
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(get)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<HashSet<_>>()
            });
            assert_eq!(addresses.len(), 1);
        }
    }
}
