//! What a buffer carries besides its bytes.
//!
//! [`FrameshareMeta`] says which frame of which stream a buffer holds. [`wire`] carries the metas of GStreamer
//! from the exporter's buffers to its readers'.

mod audio;
pub(crate) mod budget;
mod caps;
pub(crate) mod form;
mod frame;
mod raw;
pub(crate) mod wire;

pub(crate) use caps::parse as parse_caps;
pub(crate) use frame::Frame;
pub use frame::FrameshareMeta;

static CAT: std::sync::LazyLock<gst::DebugCategory> = std::sync::LazyLock::new(|| {
    gst::DebugCategory::new("frameshare-meta", gst::DebugColorFlags::empty(), Some("Metas between processes"))
});

/// Makes the metas' types known to GStreamer.
pub(crate) fn register() {
    frame::register();
}
