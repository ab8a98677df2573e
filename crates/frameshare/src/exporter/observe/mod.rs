// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notices and statistics for the owner of the stream.

mod handler;
mod notice;
mod stats;

pub use handler::NoticeHandler;
pub use notice::{Notice, ReaderInfo};
pub use stats::{DmaBufStats, ReaderStats, Stats};
