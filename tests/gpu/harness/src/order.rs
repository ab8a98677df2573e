// SPDX-License-Identifier: MIT OR Apache-2.0

//! Announcement of messages between processes to the simulated driver, whose detector of unordered
//! accesses (`tests/order`) does not see sockets.
//!
//! # Safety
//! The call takes two numbers.
#![allow(unsafe_code)]

use libloading::Library;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

type Message = unsafe extern "C" fn(number: u64, received: i32);

/// Returns a number for a message that no other message has.
pub fn number() -> u64 {
    static FIRST: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // A random number: processes in different namespaces may have the same pid.
    let first = FIRST.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    first.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Announces that a message is about to be sent.
pub fn sends(number: u64) {
    announce(number, 0);
}

/// Announces that a message was received.
pub fn received(number: u64) {
    announce(number, 1);
}

fn announce(number: u64, received: i32) {
    static CALL: OnceLock<Option<Message>> = OnceLock::new();
    let find = || {
        // A case loads no driver otherwise.
        std::env::var_os("SIMCUDA_ORDER")?;
        // SAFETY: the simulated driver, which loads like the real one.
        let driver = unsafe { Library::new("libcuda.so.1") }.ok()?;
        // SAFETY: the type is that of the simulated driver.
        let call = unsafe { driver.get::<Message>(b"simcudaMessage\0") }.ok().map(|call| *call);
        // The call stays usable until the process ends.
        std::mem::forget(driver);
        call
    };
    if let Some(call) = CALL.get_or_init(find) {
        // SAFETY: see the file's header.
        unsafe { call(number, received) }
    }
}
