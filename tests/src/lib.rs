// SPDX-License-Identifier: MIT OR Apache-2.0

//! Test kit: processes, raw protocol, frame content, random numbers, repetitions, resource
//! counts, import graphs.

pub mod census;
pub mod content;
pub mod fuzz;
pub mod imports;
pub mod process;
pub mod random;
pub mod raw;
pub mod repeat;
pub mod skip;
pub mod tally;
