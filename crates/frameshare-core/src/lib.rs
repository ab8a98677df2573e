// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decisions of exporters and readers: this crate does no I/O, reads no clock, and has no
//! thread, lock or log. Times are passed in.
#![forbid(unsafe_code)]

mod drained;
pub mod exporter;
pub mod reader;
pub mod selected;

pub use drained::{Drained, SENT_OVER_WAKE};
