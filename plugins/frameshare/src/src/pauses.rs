//! Tells an interruption by a pause from one that is to end the streaming thread.
//!
//! Who pauses the element interrupts `create` and may have it play again before `create` has returned. Were it then to
//! say that it is flushing, GstBaseSrc would stop its task for good, after it was started again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};

#[derive(Default)]
pub(super) struct Pauses {
    count: AtomicU32,
    lasts: AtomicBool,
}

impl Pauses {
    /// To be called around every change of state.
    pub fn during<T>(&self, transition: gst::StateChange, change: impl FnOnce() -> T) -> T {
        if transition == gst::StateChange::PlayingToPaused {
            self.lasts.store(true, SeqCst);
            self.count.fetch_add(1, SeqCst);
        }
        let result = change();
        // Not before: until then the interruption lasts, too.
        if transition == gst::StateChange::PausedToPlaying {
            self.lasts.store(false, SeqCst);
        }
        result
    }

    /// How many there were.
    pub fn count(&self) -> u32 {
        self.count.load(SeqCst)
    }

    /// Whether there was one since `count`, which becomes the new count, or one lasts.
    pub fn came_since(&self, count: &mut u32) -> bool {
        let before = std::mem::replace(count, self.count());
        *count != before || self.lasts.load(SeqCst)
    }
}
