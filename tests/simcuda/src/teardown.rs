// SPDX-License-Identifier: MIT OR Apache-2.0

//! Process exit. The real driver destroys its state in an exit handler. Calls that are active at
//! that time, or made later, have undefined behavior.

use crate::api::{Answer, Code};
use crate::config::{self, Strict};
use crate::{device, order, strict};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const DEINITIALIZED: Code = Code(4);

/// Duration of the teardown with `SIMCUDA_STRICT=abort`: time for late calls of other threads to be
/// detected.
const TEARDOWN_TIME: Duration = Duration::from_millis(20);

static CALLS: AtomicUsize = AtomicUsize::new(0);
static EXITING: AtomicBool = AtomicBool::new(false);

/// A call in progress.
pub struct ActiveCall(());

impl ActiveCall {
    pub fn new() -> Self {
        CALLS.fetch_add(1, Ordering::SeqCst);
        ActiveCall(())
    }
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Refuses a call that is made during process exit.
pub fn check(call: &str) -> Answer {
    if !EXITING.load(Ordering::SeqCst) {
        return Ok(());
    }
    strict::violation(&format!("{call} is called while the process exits"));
    Err(DEINITIALIZED)
}

/// Registers the exit handler.
pub fn register() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler uses only statics that are never dropped.
    ONCE.call_once(|| unsafe {
        libc::atexit(tear_down);
    });
}

extern "C" fn tear_down() {
    // A forked child inherits the handler, and the number of calls of its parent's threads.
    if device::ready().is_err() {
        return;
    }
    EXITING.store(true, Ordering::SeqCst);
    order::exits();
    if CALLS.load(Ordering::SeqCst) > 0 {
        strict::violation("a call is in progress while the process exits");
    }
    if config::get().strict == Strict::Abort {
        thread::sleep(TEARDOWN_TIME);
    }
}
