// SPDX-License-Identifier: MIT OR Apache-2.0

//! Waits of tests.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Longer than any step takes, even on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a condition that another thread or process establishes.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}
