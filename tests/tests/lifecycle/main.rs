// SPDX-License-Identifier: MIT OR Apache-2.0

//! Life cycle: exporters and readers that start and stop at any time, in numbers, repeatedly, in
//! one process and in several.
//!
//! Streams are fed buffer by buffer from the test itself, so that the expected frames follow from
//! the test's actions and not from the machine's speed.

mod cycles;
mod failed;
mod joining;
mod many;
mod restarts;
mod scale;
mod trimming;
