// SPDX-License-Identifier: MIT OR Apache-2.0

//! Announcement of words that order accesses of several processes.
//!
//! The simulated driver of the tests reports accesses to GPU memory that have no order. It does not
//! see the CPU's own loads and stores, and has two calls for them. The real driver lacks these
//! calls: the functions of this file then do nothing.
//!
//! # Safety
//! The two calls take an address, which they do not access.
#![allow(unsafe_code)]

use std::{
    ffi::c_void,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use frameshare_process::PerProcess;
use libloading::Library;

type Call = unsafe extern "C" fn(word: *const c_void);

struct Calls {
    release: Call,
    acquire: Call,
}

static CALLS: PerProcess<OnceLock<Calls>> = PerProcess::new(OnceLock::new);
/// They were found, in this process or in one that it descends from.
static ARE_FOUND: AtomicBool = AtomicBool::new(false);

/// Finds the calls of the simulated driver.
pub(crate) fn find(driver: &Library) {
    let call = |name: &[u8]| {
        // SAFETY: no other library has symbols of these names; the type is that of the simulated
        // driver.
        unsafe { driver.get::<Call>(name) }.ok().map(|call| *call)
    };
    if let (Some(release), Some(acquire)) = (call(b"simcudaRelease\0"), call(b"simcudaAcquire\0")) {
        let _ = CALLS.get().set(Calls { release, acquire });
        ARE_FOUND.store(true, Ordering::Release);
    }
}

/// Finds the calls in a process that uses the driver for nothing else: a test's reader of host
/// frames.
pub fn load() {
    // SAFETY: libcuda's initializers are made to run in any process that loads it.
    if let Ok(library) = unsafe { Library::new("libcuda.so.1") } {
        find(&library);
        // The calls stay usable until the process ends.
        std::mem::forget(library);
    }
}

/// The calls, if the driver has them. Costs the users of a real driver one comparison.
fn calls() -> Option<&'static Calls> {
    if ARE_FOUND.load(Ordering::Acquire) { CALLS.get().get() } else { None }
}

/// Announces that this thread is about to store `word`, after accesses that another process relies
/// on.
pub fn before_store<T>(word: &T) {
    if let Some(calls) = calls() {
        // SAFETY: see the file's header.
        unsafe { (calls.release)(std::ptr::from_ref(word).cast()) }
    }
}

/// Announces that this thread has loaded `word`, and relies on accesses before its store.
pub fn after_load<T>(word: &T) {
    if let Some(calls) = calls() {
        // SAFETY: see the file's header.
        unsafe { (calls.acquire)(std::ptr::from_ref(word).cast()) }
    }
}
