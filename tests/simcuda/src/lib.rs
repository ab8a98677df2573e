// SPDX-License-Identifier: MIT OR Apache-2.0

//! A simulated CUDA driver, for tests on machines without a GPU.
//!
//! Built as a `libcuda.so.1` and found by `LD_LIBRARY_PATH`, like the real one. Device memory is host memory, a device
//! pointer is a host address, and a stream is a thread that works off its queue at a pace that a seed decides.
//! `README.md` lists what is simulated, the environment variables, and the traps of the real driver that are kept.
//!
//! # Safety
//!
//! This is a C interface: handles are looked up in tables and never dereferenced, but pointers that a caller passes for
//! results, arguments and host memory are trusted to be what CUDA's documentation asks for. They are dereferenced in
//! `api` (arguments), `work` (contents) and `memop` (words) alone. The rest of the `unsafe` is memory mapping.

#![allow(unsafe_code, reason = "a C interface over mapped memory; see the Safety section above")]
#![allow(non_snake_case, reason = "the exported names are CUDA's")]
#![allow(clippy::too_many_arguments, reason = "the signatures are CUDA's")]
#![allow(clippy::missing_safety_doc, reason = "CUDA documents what its callers must hold to")]

mod afterlife;
mod api;
mod config;
mod context;
mod cuvid;
mod device;
mod errors;
mod event;
mod event_page;
mod faults;
mod gst;
mod memop;
mod memory;
mod proc_address;
mod queue;
mod stream;
mod strict;
mod sys;
mod teardown;
mod work;
