//! The engine's errors as messages of GStreamer: domain, code, and what to do.

use frameshare::{Endpoint, exporter::BindError};

/// Why a stream could not be opened for readers.
pub(crate) fn bind(endpoint: &Endpoint, error: &BindError) -> gst::ErrorMessage {
    let code = gst::ResourceError::OpenWrite;
    gst::error_msg!(code, ["Cannot share at {}: {}", endpoint, error])
}
