// SPDX-License-Identifier: MIT OR Apache-2.0

//! Simulated CUDA driver, for tests on machines without a GPU.
//!
//! Built as a `libcuda.so.1` and found by `LD_LIBRARY_PATH`, like the real one. Device memory is
//! host memory, a device pointer is a host address, and a stream is a thread that executes its
//! queue at a speed derived from a seed. `README.md` lists the simulated features, the environment
//! variables, and the failure modes of the real driver that are reproduced.
//!
//! # Safety
//!
//! This is a C interface. Handles are looked up in tables and never dereferenced. Pointers that a
//! caller passes for results, arguments and host memory are trusted to follow CUDA's documentation.
//! They are dereferenced in `api` (arguments), `work` (memory contents) and `memop` (memory values)
//! alone. The rest of the `unsafe` code is memory mapping.

#![allow(unsafe_code, reason = "a C interface over mapped memory; see the Safety section above")]
#![allow(non_snake_case, reason = "the exported names are CUDA's")]
#![allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]
#![allow(clippy::missing_safety_doc, reason = "CUDA documents the duties of its callers")]

mod api;
mod calls;
mod capture;
mod config;
mod context;
mod context_state;
mod cuvid;
mod device;
mod entry;
mod errors;
mod event;
mod event_page;
mod faults;
mod gst;
mod memop;
mod memory;
mod mps;
mod order;
mod proc_address;
mod queue;
mod stream;
mod strict;
mod sys;
mod teardown;
mod work;
