// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notices for the owner of the stream.

mod handler;

pub use handler::NoticeHandler;
