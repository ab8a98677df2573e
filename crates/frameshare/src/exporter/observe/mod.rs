// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports to the owner: notices, rejections, statistics.

mod notice;
mod observer;
mod rejection_log;
mod stats;

pub use notice::{Notice, ReaderInfo};
pub use observer::Observer;
pub use rejection_log::RejectionLog;
pub use stats::{ReaderStats, Stats};
