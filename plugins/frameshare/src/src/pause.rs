//! Pausing without ending the task.
//!
//! `create` is interrupted when a pipeline pauses. Were it to return FLUSHING then, as GstBaseSrc documents, a pause
//! that is over at once would stall the stream: GstBaseSrc pauses the task for the FLUSHING after PLAYING has started it
//! again (seen with GStreamer 1.26). So it waits here until the pipeline plays. `gst_base_src_wait_playing` would not do:
//! it waits for the next signal even if the pipeline plays by now.
//!
//! # Safety
//!
//! GstBaseSrc's live lock, its condition and the flag that they guard are public fields of the element, which is alive.
#![allow(unsafe_code)]

use frameshare::Interrupt;
use glib::object::IsA;
use gst::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Tells an interruption by a pause from the others: the end of a stream, a flush, a stop.
#[derive(Debug, Default)]
pub(super) struct Pause(Mutex<Unlocks>);

/// The calls of `unlock`. GstBaseSrc takes the one for a pause back by `unlock_stop` only some time after the pause.
#[derive(Debug, Default)]
struct Unlocks {
    count: u64,
    /// The element is on its way from PLAYING to PAUSED.
    pausing: bool,
    /// Which one was for the last pause.
    pause: Option<u64>,
}

impl Pause {
    fn unlocks(&self) -> MutexGuard<'_, Unlocks> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Around the change of state from PLAYING to PAUSED.
    pub fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        self.unlocks().pausing = true;
        let result = change();
        self.unlocks().pausing = false;
        result
    }

    /// `unlock` is called: interrupts.
    pub fn unlock(&self, interrupt: &Interrupt) {
        let mut unlocks = self.unlocks();
        unlocks.count += 1;
        if unlocks.pausing {
            unlocks.pause = Some(unlocks.count);
        }
        interrupt.set();
    }

    /// `create` begins, which it does in PLAYING alone: what was before is over.
    pub fn begin(&self) {
        self.unlocks().pause = None;
    }

    /// Whether the last call of `unlock` was for a pause.
    fn is_last(&self) -> bool {
        let unlocks = self.unlocks();
        unlocks.pause == Some(unlocks.count)
    }

    /// After an interruption: whether it was a pause, and it is over. Waits for the pause to end, or for an interruption
    /// of another kind.
    pub fn wait_for_end(&self, source: &impl IsA<gst_base::BaseSrc>, interrupt: &Interrupt) -> bool {
        if !self.is_last() {
            return false;
        }
        // The flag goes down only after `unlock` was called.
        while self.unlocks().pausing {
            std::thread::yield_now();
        }
        let source: *mut gst_base::ffi::GstBaseSrc = source.as_ref().as_ptr();
        // SAFETY: the element is alive, and its lock and condition with it; the flag is read with the lock held. Whoever
        // stops or flushes calls `unlock` before it takes the lock to signal.
        unsafe {
            glib::ffi::g_mutex_lock(&raw mut (*source).live_lock);
            while (*source).live_running == glib::ffi::GFALSE && self.is_last() {
                glib::ffi::g_cond_wait(&raw mut (*source).live_cond, &raw mut (*source).live_lock);
            }
            glib::ffi::g_mutex_unlock(&raw mut (*source).live_lock);
        }
        let mut unlocks = self.unlocks();
        let over = unlocks.pause == Some(unlocks.count);
        if over {
            unlocks.pause = None;
            interrupt.clear();
        }
        over
    }
}
