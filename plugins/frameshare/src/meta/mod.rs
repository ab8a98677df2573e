// SPDX-License-Identifier: MIT OR Apache-2.0

//! Metadata of buffers.
//!
//! [`FrameshareMeta`] identifies the frame of a buffer. [`wire`] carries the metas of GStreamer
//! from the exporter's buffers to its readers'.

mod audio;
pub(crate) mod budget;
mod caps;
pub(crate) mod form;
pub(crate) mod wire;

pub(crate) use crate::ffi::frameshare_meta::FrameInfo;
pub use crate::ffi::frameshare_meta::FrameshareMeta;
pub(crate) use caps::parse as parse_caps;

static CAT: std::sync::LazyLock<gst::DebugCategory> = std::sync::LazyLock::new(|| {
    gst::DebugCategory::new("frameshare-meta", gst::DebugColorFlags::empty(), Some("Metas between processes"))
});

/// Registers the metas' types with GStreamer.
pub(crate) fn register() {
    crate::ffi::frameshare_meta::register();
}
