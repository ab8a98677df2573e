// SPDX-License-Identifier: MIT OR Apache-2.0

//! Tests of frameshare across processes, and the code that they share.

pub mod census;
pub mod fuzz;
pub mod raw;
pub mod tally;
