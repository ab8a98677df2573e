// SPDX-License-Identifier: MIT OR Apache-2.0

//! The detector of unordered accesses (`tests/order`) in cases on the simulated driver.
//!
//! The runner checks the trace of each case at its end. The detector sees neither sockets nor
//! accesses of the CPU: this file announces them to the simulated driver.
//!
//! # Safety
//! The calls take numbers, and an address that they do not access.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::hash::{BuildHasher as _, RandomState};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use anyhow::{Result, bail};
use libloading::Library;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

type Message = unsafe extern "C" fn(number: u64, received: i32);
type Access = unsafe extern "C" fn(address: *const c_void, len: usize, write: i32);

/// The verdict of the detector with which a case passes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Expected {
    /// All accesses are ordered.
    #[default]
    Ordered,
    /// Some are not: a negative control of an order.
    Unordered,
    /// Either: a negative control of something else.
    Any,
}

static EXPECTED: Mutex<Expected> = Mutex::new(Expected::Ordered);

/// Sets the verdict with which this case passes.
pub fn expect(expected: Expected) {
    *EXPECTED.lock().unwrap_or_else(PoisonError::into_inner) = expected;
}

pub(crate) fn expected() -> Expected {
    *EXPECTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the detector checks this case.
#[must_use]
pub fn is_checked() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// The variable that names the trace.
const VARIABLE: &str = "SIMCUDA_ORDER";

/// The trace of one case.
pub(crate) struct Trace(NamedTempFile);

impl Trace {
    /// Begins a trace; none if the user has another one made.
    pub(crate) fn begin() -> Result<Option<Trace>> {
        let is_other = std::env::var_os(VARIABLE).is_some();
        Ok(if is_other { None } else { Some(Trace(NamedTempFile::with_prefix("gpu-order-")?)) })
    }

    pub(crate) fn variable(&self) -> (&'static str, &Path) {
        (VARIABLE, self.0.path())
    }

    /// Returns the first unordered access if there must be none, or an error if there must be one.
    pub(crate) fn check(&self, expected: Expected) -> Result<()> {
        match (expected, gpu_order::check(self.0.path())) {
            (Expected::Ordered, Err(violation)) => bail!("{violation}"),
            (Expected::Unordered, Ok(_)) => bail!("the detector reports no unordered access"),
            _ => Ok(()),
        }
    }
}

/// Returns a number for a message that no other message has.
pub(crate) fn number() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // A random number: processes in different namespaces may have the same pid.
    let first = FIRST.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    first.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Announces that a message is about to be sent.
pub(crate) fn sends(number: u64) {
    announce(number, 0);
}

/// Announces that a message was received.
pub(crate) fn received(number: u64) {
    announce(number, 1);
}

fn announce(number: u64, received: i32) {
    if let Some(calls) = calls() {
        // SAFETY: see the file's header.
        unsafe { (calls.message)(number, received) }
    }
}

/// Announces that the CPU reads memory.
pub fn reads<T>(memory: &[T]) {
    if let Some(calls) = calls() {
        // SAFETY: see the file's header.
        unsafe { (calls.access)(memory.as_ptr().cast(), size_of_val(memory), 0) }
    }
}

struct Calls {
    message: Message,
    access: Access,
}

fn calls() -> Option<&'static Calls> {
    static CALLS: OnceLock<Option<Calls>> = OnceLock::new();
    let find = || {
        // Cases and readers of host frames load no driver otherwise.
        if !is_checked() {
            return None;
        }
        frameshare_cuda::order::load();
        // SAFETY: the simulated driver, which loads like the real one.
        let driver = unsafe { Library::new("libcuda.so.1") }.ok()?;
        // SAFETY: the types are those of the simulated driver.
        let (message, access) = unsafe {
            let message = driver.get::<Message>(b"simcudaMessage\0").ok().map(|call| *call);
            (message, driver.get::<Access>(b"simcudaAccess\0").ok().map(|call| *call))
        };
        // The calls stay usable until the process ends.
        std::mem::forget(driver);
        Some(Calls { message: message?, access: access? })
    };
    CALLS.get_or_init(find).as_ref()
}
