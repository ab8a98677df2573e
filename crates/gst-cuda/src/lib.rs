// SPDX-License-Identifier: MIT OR Apache-2.0

//! GStreamer's CUDA library, loaded at run time: contexts, streams, memory and pools shared with
//! the `cuda*` and `nv*` elements.
//!
//! Nothing links to libgstcuda-1.0: one plugin binary runs on machines with and without it.
//! [`load`] loads the library, or returns the missing part; objects of this crate exist only after
//! it succeeded.
//!
//! | module | contents |
//! | --- | --- |
//! | [`context`] | [`Context`], and its sharing between elements |
//! | [`stream`] | [`Stream`] |
//! | [`memory`] | access to existing CUDA memory; reusable wrapped memory |
//! | [`pool`] | base class of pools of CUDA memory, and their configuration |
//! | [`layout`] | memory layout of video frames on a GPU |
//!
//! # Conventions
//!
//! - Sizes and offsets are in bytes. An [`Address`] is valid in this process only, and belongs to a
//!   context.
//! - Functions wait for the GPU only where their documentation says so.

pub mod context;
mod ffi;
pub mod layout;
mod library;
pub mod memory;
pub mod pool;
pub mod stream;

pub use context::Context;
pub use library::{Unavailable, load};
pub use memory::Reusable;
pub use pool::BufferPool;
pub use stream::Stream;

/// An address in GPU memory (CUdeviceptr).
pub type Address = u64;

/// Caps feature of frames in CUDA memory.
pub const CAPS_FEATURE: &str = "memory:CUDAMemory";
