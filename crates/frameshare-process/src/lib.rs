// SPDX-License-Identifier: MIT OR Apache-2.0

//! State of one process, and a number that a fork changes.
//!
//! Each static of frameshare's crates that a thread can lock, make or count in is a [`PerProcess`],
//! which `tests/tests/layers.rs` checks.
//!
//! A program can load several copies of these crates: the GStreamer plugin, libframeshare and the
//! Python package contain one each. Each copy has statics of its own.

mod number;
mod per_process;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

pub use number::process_number;
pub use per_process::PerProcess;
