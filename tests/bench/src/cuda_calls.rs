// SPDX-License-Identifier: MIT OR Apache-2.0

//! Marks of the measurement for `cuda-calls.c`, which counts CUDA calls between them.

use crate::usage::Usage;
use rustix::process::{Signal, getpid, kill_process};
use std::env;

/// The program runs with `cuda-calls.c`, which handles the signal.
fn prefix() -> Option<String> {
    env::var("CUDA_CALLS").ok()
}

/// Begins to count.
pub fn begin() {
    if prefix().is_some() {
        let _ = kill_process(getpid(), Signal::USR2);
    }
}

/// Ends counting, and writes the figures of the same time beside the counts.
pub fn end(side: &str, frames: u64, usage: Usage) {
    let Some(prefix) = prefix() else { return };
    let _ = kill_process(getpid(), Signal::USR2);
    let path = format!("{prefix}.{}.{side}", getpid());
    let _ = std::fs::write(path, format!("{frames} {}\n", usage.cpu));
}
