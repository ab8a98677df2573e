// SPDX-License-Identifier: MIT OR Apache-2.0

//! Stalled allocation in tests: the admission of one exporter's readers runs a function first.

use crate::sys::PerProcess;
use std::sync::{Arc, Mutex, PoisonError};

type Stalls = Vec<(u64, Arc<dyn Fn() + Send + Sync>)>;

static STALLS: PerProcess<Mutex<Stalls>> = PerProcess::new(Mutex::default);

/// Runs `stall` wherever a reader of this exporter gets its memory.
pub fn set(exporter: u64, stall: impl Fn() + Send + Sync + 'static) {
    STALLS.lock().unwrap_or_else(PoisonError::into_inner).push((exporter, Arc::new(stall)));
}

pub fn reach(exporter: u64) {
    let stalls = STALLS.lock().unwrap_or_else(PoisonError::into_inner).clone();
    stalls.into_iter().filter(|(of, _)| *of == exporter).for_each(|(_, stall)| stall());
}
