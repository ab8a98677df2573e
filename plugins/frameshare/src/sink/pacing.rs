// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether frames wait for their time. Any thread may ask, so the answers are atomics.

use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The answer to a question, if it is known. The default is that it is not.
#[derive(Default)]
struct Answer(AtomicU8);

impl Answer {
    fn get(&self) -> Option<bool> {
        match self.0.load(Relaxed) {
            0 => None,
            answer => Some(answer == 2),
        }
    }

    fn set(&self, answer: Option<bool>) {
        self.0.store(answer.map_or(0, |yes| if yes { 2 } else { 1 }), Relaxed);
    }
}

/// The conditions under which frames wait for their time: the property `sync`, and whether upstream
/// is live. It does not wait: `GstBaseSink` does.
#[derive(Default)]
pub(super) struct Pacing {
    /// The property `sync`, once it was set.
    sync: Answer,
    /// Whether upstream is live, once it was asked.
    live: Answer,
}

impl Pacing {
    /// Copies the property `sync`, if it was set.
    pub(super) fn set_sync(&self, sync: Option<bool>) {
        self.sync.set(sync);
    }

    /// Begins and ends a run: upstream was not asked.
    pub(super) fn reset(&self) {
        self.live.set(None);
    }

    /// Sets upstream's answer to whether it is live.
    pub(super) fn set_live(&self, yes: bool) {
        self.live.set(Some(yes));
    }

    /// Returns whether upstream was asked if it is live.
    pub(super) fn has_asked(&self) -> bool {
        self.live.get().is_some()
    }

    /// Returns whether upstream says that it is live.
    pub(super) fn is_live(&self) -> bool {
        self.live.get() == Some(true)
    }

    /// Returns whether frames wait for their time in a sink that synchronizes: those of a live
    /// upstream are published when they arrive, unless `sync` is set.
    pub(super) fn waits(&self) -> bool {
        self.sync.get().unwrap_or_else(|| !self.is_live())
    }
}
