//! GStreamer's CUDA library, found at run time: contexts, streams, memory and pools that its `cuda*` and `nv*` elements
//! share.
//!
//! Nothing links to libgstcuda-1.0: one plugin binary serves machines with and without it. [`load`] finds it and says
//! what is missing; every object of this crate is proof that it was found.
//!
//! | module | what it holds |
//! | --- | --- |
//! | [`context`] | [`Context`], and how elements share one |
//! | [`stream`] | [`Stream`] |
//! | [`memory`] | a look at memory of others; memory wrapped once and lent out again and again |
//! | [`pool`] | the class that pools of CUDA memory derive from, and their configuration |
//! | [`layout`] | where the planes of a picture lie on a GPU |
//!
//! # Conventions
//!
//! - Sizes and offsets are bytes. An [`Address`] is valid in this process only, and belongs to a context.
//! - Nothing here waits for the GPU except where the documentation of a function says so.

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

/// What caps say of frames in CUDA memory.
pub const CAPS_FEATURE: &str = "memory:CUDAMemory";
