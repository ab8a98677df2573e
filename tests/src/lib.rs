//! Tests of frameshare across processes, and what they share.

pub mod census;
pub mod fuzz;
pub mod raw;
pub mod tally;
