// SPDX-License-Identifier: MIT OR Apache-2.0

//! The decisions of exporters and readers.

pub mod exporter;
pub mod reader;
pub mod selected;
