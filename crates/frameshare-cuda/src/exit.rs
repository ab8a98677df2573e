// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exit guard: no driver calls while the process exits.
//!
//! libcuda tears its state down in its own exit handlers while other threads may still be in driver
//! calls; the result is undefined (CUDA C++ programming guide, "Initialization"). Threads that free
//! memory or poll for peers outlive the objects they serve, so they may run at that time. An exit
//! handler registered after libcuda's runs before it (atexit(3)): it rejects new driver calls and
//! waits until calls in progress have returned.
//!
//! # Safety
//! The handler is a function of this crate that accesses only an atomic, which is never dropped.
#![allow(unsafe_code)]

use frameshare_process::PerProcess;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum wait of the exit handler for calls in progress; a call that waits for a stuck stream
/// never returns.
const PATIENCE: Duration = Duration::from_secs(1);

/// Set once the process is exiting; the other bits count the calls in progress.
const EXITING: usize = 1 << (usize::BITS - 1);
/// A forked child, which inherits the handler, does not wait for calls of its parent's threads.
static CALLS: PerProcess<AtomicUsize> = PerProcess::new(AtomicUsize::default);

/// A driver call in progress.
pub(crate) struct UnderWay(&'static AtomicUsize);

/// Begins a call, unless the process is exiting.
pub(crate) fn begin_call() -> Option<UnderWay> {
    let call = UnderWay(CALLS.get());
    // Acquire and Release order each call before the end of the handler's wait.
    let before = call.0.fetch_add(1, Ordering::Acquire);
    (before & EXITING == 0).then_some(call)
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Registers the exit handler. Call it once libcuda has registered its own.
pub(crate) fn guard() {
    // SAFETY: the handler does not unwind, and uses nothing that is destroyed before it runs.
    unsafe { libc::atexit(wait_for_calls) };
}

extern "C" fn wait_for_calls() {
    let calls = CALLS.get();
    calls.fetch_or(EXITING, Ordering::Relaxed);
    let end = Instant::now() + PATIENCE;
    while calls.load(Ordering::Acquire) != EXITING && Instant::now() < end {
        thread::sleep(Duration::from_micros(100));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_process::testing::in_child;

    /// Returns whether the handler returns without waiting for calls.
    fn is_prompt() -> bool {
        let begin = Instant::now();
        wait_for_calls();
        begin.elapsed() < PATIENCE / 2
    }

    #[test]
    fn exit_of_forked_child_does_not_wait_for_calls_of_parent() {
        let call = begin_call();
        assert_eq!(in_child(is_prompt), Some(true));
        // Negative control: a call of the process itself is waited for.
        let waits = || {
            let _call = begin_call();
            !is_prompt() && begin_call().is_none()
        };
        assert_eq!(in_child(waits), Some(true));
        drop(call);
    }
}
