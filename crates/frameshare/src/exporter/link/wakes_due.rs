// SPDX-License-Identifier: MIT OR Apache-2.0

//! Whether readers of a stream are to be woken.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

/// Says that some reader is to be woken when the state is unlocked, so that links are looked
/// through only then. Clones share it. All uses of it hold the state's lock.
///
/// Every link that is to be woken has set it. When the state is unlocked, the wake-ups of all links
/// are taken, and those of links that were released meanwhile, which the state keeps.
#[derive(Clone, Debug, Default)]
pub struct WakesDue(Arc<AtomicBool>);

impl WakesDue {
    pub fn set(&self) {
        self.0.store(true, Relaxed);
    }

    /// Returns whether it was set since the last call.
    pub fn take(&self) -> bool {
        let is_set = self.0.load(Relaxed);
        if is_set {
            self.0.store(false, Relaxed);
        }
        is_set
    }
}
