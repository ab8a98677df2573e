// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of a context as its streams see it, and waits that its failure ends.

use crate::api::{Answer, CONTEXT_IS_DESTROYED, Code, ILLEGAL_ADDRESS};
use crate::mps;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

/// State of a context: usable, destroyed, or failed with a sticky error.
#[derive(Debug)]
pub struct ContextState {
    /// Physical index of the context's device.
    pub device: u32,
    sticky: AtomicI32,
    /// Faults of the clients of MPS before this context.
    faults_before: u64,
    destroyed: AtomicBool,
}

impl ContextState {
    pub fn new(device: u32) -> ContextState {
        ContextState {
            device,
            sticky: AtomicI32::new(0),
            faults_before: mps::faults(),
            destroyed: AtomicBool::new(false),
        }
    }

    /// Sets the sticky error. Later errors do not replace the first one.
    pub fn poison(&self, code: i32) {
        if self.set_sticky(code) {
            mps::fault();
        }
    }

    fn set_sticky(&self, code: i32) -> bool {
        self.sticky.compare_exchange(0, code, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub fn destroy(&self) {
        self.destroyed.store(true, Ordering::Release);
    }

    /// Returns the error that every call into the context returns, if there is one.
    pub fn check(&self) -> Answer {
        if mps::is_client() && mps::faults() > self.faults_before {
            self.set_sticky(ILLEGAL_ADDRESS.0);
        }
        match self.sticky.load(Ordering::Acquire) {
            0 if self.destroyed.load(Ordering::Acquire) => Err(CONTEXT_IS_DESTROYED),
            0 => Ok(()),
            code => Err(Code(code)),
        }
    }

    pub fn is_unusable(&self) -> bool {
        self.check().is_err()
    }
}

/// Polls with growing pauses until `condition` or `cancel` returns true. Returns whether
/// `condition` did.
pub fn poll(condition: impl Fn() -> bool, cancel: impl Fn() -> bool) -> bool {
    let mut pause = Duration::from_micros(10);
    loop {
        if condition() {
            return true;
        }
        if cancel() {
            return false;
        }
        std::thread::sleep(pause);
        pause = (pause * 3 / 2).min(Duration::from_micros(500));
    }
}
