// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delivery: publication of frames, and waits for readers.

pub mod backpressure;
pub mod download_target;
mod publish;
#[cfg(test)]
mod tests;

pub use publish::publish;
