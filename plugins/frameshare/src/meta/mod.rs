//! What a buffer carries besides its bytes.
//!
//! [`FrameshareMeta`] says which frame of which stream a buffer holds. [`wire`] carries the metas of GStreamer
//! from the exporter's buffers to its readers'.

mod audio;
mod frame;
mod newer;
mod raw;
mod text;
pub(crate) mod wire;

pub(crate) use frame::Frame;
pub use frame::FrameshareMeta;
pub(crate) use text::{is_harmless, parse_caps, parse_structure};

static CAT: std::sync::LazyLock<gst::DebugCategory> = std::sync::LazyLock::new(|| {
    gst::DebugCategory::new("frameshare-meta", gst::DebugColorFlags::empty(), Some("Metas between processes"))
});

/// Makes the metas' types known to GStreamer.
pub(crate) fn register() {
    frame::register();
}
