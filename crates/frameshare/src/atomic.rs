// SPDX-License-Identifier: MIT OR Apache-2.0

//! The atomics of the shared pages: std's, or loom's while the queue's memory ordering is
//! model-checked.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicU64, Ordering, fence};
