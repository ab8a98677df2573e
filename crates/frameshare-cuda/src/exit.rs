//! No call into the driver while the process exits.
//!
//! libcuda takes its state apart in exit handlers of its own, under threads that are still in it: what they do then is
//! undefined (CUDA C++ programming guide, "Initialization"). Threads that free memory or wait for peers outlive what they
//! work for, and so may run then. A handler that runs before libcuda's, since it was registered later (atexit(3)), waits
//! until they are out of the driver, and they are kept out of it from then on.
//!
//! # Safety
//! The handler is a function of this crate that touches nothing but an atomic.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long exiting waits for calls that are under way; one that waits for a stream that is stuck never ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// Set once the process exits; the other bits count the calls that are under way.
const EXITING: usize = 1 << (usize::BITS - 1);
static CALLS: AtomicUsize = AtomicUsize::new(0);

/// A call that is under way.
pub(crate) struct UnderWay(());

/// Begins a call, unless the process exits.
pub(crate) fn begin_call() -> Option<UnderWay> {
    let call = UnderWay(());
    // Acquire and release order a call with the handler's wait for it.
    let before = CALLS.fetch_add(1, Ordering::Acquire);
    (before & EXITING == 0).then_some(call)
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::Release);
    }
}

/// Has the process wait for calls when it exits, from now on: to be called when libcuda has registered its own handlers.
pub(crate) fn guard() {
    // SAFETY: the handler neither unwinds nor uses what is gone by then.
    unsafe { libc::atexit(wait_for_calls) };
}

extern "C" fn wait_for_calls() {
    CALLS.fetch_or(EXITING, Ordering::Relaxed);
    let end = Instant::now() + PATIENCE;
    while CALLS.load(Ordering::Acquire) != EXITING && Instant::now() < end {
        thread::sleep(Duration::from_micros(100));
    }
}
