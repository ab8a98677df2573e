// SPDX-License-Identifier: MIT OR Apache-2.0

//! Safe functions for what the Rust bindings of GLib and GStreamer lack.
//!
//! Unsafe code of the plugin is in this folder, besides the two places that queue copies on a GPU
//! stream. Each file names what its safety relies on.

pub(crate) mod base_sink;
pub(crate) mod base_src;
pub(crate) mod buffer_flags;
pub(crate) mod cuda;
pub(crate) mod device_provider;
pub(crate) mod dma_buf;
pub(crate) mod frame_bytes;
pub(crate) mod frameshare_meta;
pub(crate) mod leased;
pub(crate) mod mini_object;
pub(crate) mod param_spec;
pub(crate) mod plane_bytes;
pub(crate) mod raw_enum;
pub(crate) mod serialized_meta;
pub(crate) mod slot_memory;
pub(crate) mod slot_planes;
pub(crate) mod typed_value;
pub(crate) mod used_on;
