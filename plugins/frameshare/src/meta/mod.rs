//! What a buffer carries besides its bytes.

/// Makes the metas' types known to GStreamer.
pub(crate) fn register() {}
