// SPDX-License-Identifier: MIT OR Apache-2.0

//! Pause handling that keeps the streaming task alive.
//!
//! `create` is interrupted when a pipeline pauses. If it returned FLUSHING then, as GstBaseSrc
//! documents, a very short pause would stall the stream: GstBaseSrc pauses the task for the
//! FLUSHING after PLAYING has started it again (seen with GStreamer 1.26). So `create` waits here
//! until the pipeline plays. `gst_base_src_wait_playing` does not suffice: it waits for the next
//! signal even if the pipeline already plays.

use crate::{ffi::base_src, sync::lock};
use frameshare::Interrupt;
use glib::object::IsA;
use std::sync::{
    Mutex, MutexGuard,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

/// Distinguishes a pause, and a switch of the stream, from the other interruptions: end of stream,
/// flush, stop.
#[derive(Debug, Default)]
pub(super) struct Pause {
    unlocks: Mutex<Unlocks>,
    /// A pause or a request to switch was not answered yet. Without one, a frame takes no lock.
    has_news: AtomicBool,
}

/// Calls of `unlock`. GstBaseSrc reverts the call for a pause with `unlock_stop` only some time
/// after the pause.
#[derive(Debug, Default)]
struct Unlocks {
    count: u64,
    /// The element is changing from PLAYING to PAUSED.
    pausing: bool,
    /// Number of the call for the last pause.
    pause: Option<u64>,
    /// `unlock` was called, and neither reverted nor answered by the end of its pause.
    unlocked: bool,
    /// A switch of the stream is requested; the interrupt stays set until it is taken.
    switching: bool,
}

impl Unlocks {
    fn clear(&mut self, interrupt: &Interrupt) {
        self.unlocked = false;
        if !self.switching {
            interrupt.clear();
        }
    }
}

impl Pause {
    fn unlocks(&self) -> MutexGuard<'_, Unlocks> {
        lock(&self.unlocks)
    }

    fn update<T>(&self, update: impl FnOnce(&mut Unlocks) -> T) -> T {
        let mut unlocks = self.unlocks();
        let result = update(&mut unlocks);
        self.has_news.store(unlocks.switching || unlocks.pause.is_some(), Release);
        result
    }

    fn has_news(&self) -> bool {
        self.has_news.load(Acquire)
    }

    /// Wraps the state change from PLAYING to PAUSED.
    pub fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        self.unlocks().pausing = true;
        let result = change();
        self.unlocks().pausing = false;
        result
    }

    /// Handles `unlock`: counts the call and interrupts.
    pub fn unlock(&self, interrupt: &Interrupt) {
        self.update(|unlocks| {
            unlocks.count += 1;
            unlocks.unlocked = true;
            if unlocks.pausing {
                unlocks.pause = Some(unlocks.count);
            }
            interrupt.set();
        });
    }

    /// Handles `unlock_stop`: allows waits again.
    pub fn unlock_stop(&self, interrupt: &Interrupt) {
        self.unlocks().clear(interrupt);
    }

    /// Requests a switch of the stream, and interrupts.
    pub fn request_switch(&self, interrupt: &Interrupt) {
        self.update(|unlocks| {
            unlocks.switching = true;
            interrupt.set();
        });
    }

    /// Forgets the request of an earlier run.
    pub fn reset(&self) {
        self.update(|unlocks| (unlocks.switching, unlocks.unlocked) = (false, false));
    }

    /// Returns whether a switch is requested, and takes the request.
    pub fn take_switch(&self, interrupt: &Interrupt) -> bool {
        self.has_news()
            && self.update(|unlocks| {
                let requested = std::mem::take(&mut unlocks.switching);
                if requested && !unlocks.unlocked {
                    interrupt.clear();
                }
                requested
            })
    }

    /// Returns whether a switch is requested, and nothing else has interrupted.
    pub fn is_for_switch(&self) -> bool {
        let unlocks = self.unlocks();
        unlocks.switching && !unlocks.unlocked
    }

    /// Handles the start of `create`, which runs in PLAYING only: an earlier pause is over.
    pub fn begin(&self) {
        if self.has_news() {
            self.update(|unlocks| unlocks.pause = None);
        }
    }

    /// Returns whether the last call of `unlock` was for a pause.
    fn is_last(&self) -> bool {
        let unlocks = self.unlocks();
        unlocks.pause == Some(unlocks.count)
    }

    /// Blocks after an interruption until the pause ends or another interruption comes. Returns
    /// whether the interruption was a pause that has ended.
    pub fn wait_for_end(&self, source: &impl IsA<gst_base::BaseSrc>, interrupt: &Interrupt) -> bool {
        if !self.is_last() {
            return false;
        }
        // The flag is cleared only after `unlock` was called.
        while self.unlocks().pausing {
            std::thread::yield_now();
        }
        // A stop or flush calls `unlock` before it takes the lock to signal.
        base_src::wait_until_live(source, || self.is_last());
        self.update(|unlocks| {
            let over = unlocks.pause == Some(unlocks.count);
            if over {
                unlocks.pause = None;
                unlocks.clear(interrupt);
            }
            over
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requested_switch_is_taken_once_and_survives_a_pause() {
        let (pause, interrupt) = (Pause::default(), Interrupt::new().unwrap());
        pause.begin();
        assert!(!pause.take_switch(&interrupt));
        pause.request_switch(&interrupt);
        pause.change(|| pause.unlock(&interrupt));
        assert!(!pause.is_for_switch() && pause.is_last());
        pause.begin();
        assert!(!pause.is_last(), "create runs again");
        pause.unlock_stop(&interrupt);
        assert!(pause.is_for_switch());
        assert!(pause.take_switch(&interrupt) && !pause.take_switch(&interrupt));
        assert!(!pause.has_news(), "the next frame takes no lock");
        pause.request_switch(&interrupt);
        pause.reset();
        assert!(!pause.take_switch(&interrupt));
    }
}
