// SPDX-License-Identifier: MIT OR Apache-2.0

//! The end of the process. The real driver takes its state apart in an exit handler; what threads do that are still in
//! it, or come later, is undefined.

use crate::api::{Answer, Code};
use crate::config::{self, Strict};
use crate::strict;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const DEINITIALIZED: Code = Code(4);

/// How long it takes where it is watched: time for other threads to make their mistakes in.
const TAKES: Duration = Duration::from_millis(20);

static CALLS: AtomicUsize = AtomicUsize::new(0);
static OVER: AtomicBool = AtomicBool::new(false);

/// A call that is under way.
pub struct UnderWay(());

impl UnderWay {
    pub fn new() -> Self {
        CALLS.fetch_add(1, Ordering::SeqCst);
        UnderWay(())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Refuses a call that comes too late.
pub fn check(call: &str) -> Answer {
    if !OVER.load(Ordering::SeqCst) {
        return Ok(());
    }
    strict::violation(&format!("{call} is called while the process exits"));
    Err(DEINITIALIZED)
}

/// From now on the driver goes when the process exits.
pub fn register() {
    static ONCE: Once = Once::new();
    // SAFETY: the handler needs nothing but statics that are never taken down.
    ONCE.call_once(|| unsafe {
        libc::atexit(take_down);
    });
}

extern "C" fn take_down() {
    OVER.store(true, Ordering::SeqCst);
    if CALLS.load(Ordering::SeqCst) > 0 {
        strict::violation("a call is under way while the process exits");
    }
    if config::get().strict == Strict::Abort {
        thread::sleep(TAKES);
    }
}
