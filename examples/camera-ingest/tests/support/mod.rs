// SPDX-License-Identifier: MIT OR Apache-2.0

//! Sites of the tests: the real programs, in folders of their own.
#![allow(dead_code)] // each test uses a part

mod cameras;
mod recording;
mod site;

pub use cameras::Cameras;
pub use recording::{Recording, runs};
pub use site::Site;

use std::{
    thread,
    time::{Duration, Instant},
};

/// Time limit of each wait; only a hang exceeds it.
const PATIENCE: Duration = Duration::from_secs(90);

/// Waits for a condition. `describe` says what there was instead.
pub fn wait_for<T>(what: &str, describe: impl Fn() -> String, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}\n{}", describe());
        thread::sleep(Duration::from_millis(50));
    }
}
