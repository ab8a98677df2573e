// SPDX-License-Identifier: MIT OR Apache-2.0

//! Failure of the sink: it has refused caps or a buffer.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the sink has refused caps or a buffer since it was opened.
#[derive(Default)]
pub(super) struct Failure(AtomicBool);

impl Failure {
    pub(super) fn set(&self) {
        self.0.store(true, Relaxed);
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Relaxed)
    }
}
