// SPDX-License-Identifier: MIT OR Apache-2.0

//! Protocols by which the memory of frames goes out.

pub mod buffer;
