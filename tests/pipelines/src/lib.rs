// SPDX-License-Identifier: MIT OR Apache-2.0

//! The elements in the process of a test, with the test at their other ends.
//!
//! A crate apart from the test kit: peers, and tests of the engine on GPUs, run without GStreamer.

mod exporter;
mod frames;
mod pipeline;
mod reader;

pub use exporter::Exporter;
pub use frames::{CAPS, SIZE, check, frame};
pub use pipeline::{Pipeline, init};
pub use reader::{Arrival, Reader};
