// SPDX-License-Identifier: MIT OR Apache-2.0

//! Protocols by which the memory of frames goes out.
//!
//! - `exported`: the class of arrays in held frames, which has all of them
//! - `buffer`: the buffer protocol, for host memory
//! - `interface`: `__array_interface__`, `__cuda_array_interface__`
//! - `dlpack`: DLPack, for all memory
//! - `consumer`: streams of consumers
//! - `copy`: private copies

pub mod buffer;
pub mod consumer;
pub mod copy;
pub mod dlpack;
pub mod exported;
pub mod interface;
