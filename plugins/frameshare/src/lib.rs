// SPDX-License-Identifier: MIT OR Apache-2.0

//! GStreamer elements that share video frames between processes without a copy.
//!
//! `framesharesink` shares the frames of a pipeline with any number of other processes;
//! `framesharesrc` reads them in place. The engine is the crate `frameshare`.

mod cuda;
mod device;
mod drm;
mod errors;
mod events;
mod fence;
mod ffi;
mod flags;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod log;
mod meta;
mod mutability;
mod pipeline;
mod plugin;
mod pool;
mod program;
mod properties;
mod rows;
mod sink;
mod src;
mod sync;
mod times;
mod uri;

pub use fence::FrameshareFence;
pub use meta::FrameshareMeta;
pub use plugin::plugin_register_static;
