// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports to the owner: notices, rejections, statistics.

mod copies;
mod handler;
mod notice;
mod rejection_log;
mod stats;

pub use copies::Copies;
pub use handler::NoticeHandler;
pub use notice::{Notice, ReaderInfo};
pub use rejection_log::RejectionLog;
pub use stats::{DmaBufStats, ReaderStats, Stats};
