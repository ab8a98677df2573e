//! The engine's errors as messages of GStreamer: domain, code, and what to do.

use frameshare::exporter::BindError;

/// Why a stream could not be opened for readers. The error's own words name the place, and who is in the way.
pub(crate) fn bind(error: &BindError) -> gst::ErrorMessage {
    match error {
        BindError::InUse { .. } => gst::error_msg!(gst::ResourceError::Busy, ("{}", error)),
        BindError::Io { .. } => gst::error_msg!(gst::ResourceError::OpenWrite, ("{}", error)),
        BindError::NoThread { .. } => gst::error_msg!(gst::ResourceError::Failed, ("{}", error)),
        BindError::Setup { .. } => gst::error_msg!(
            gst::ResourceError::Failed,
            (
                "{}; check the limits of this process, of open files and of memory, and the GPU if it has one",
                error
            )
        ),
        BindError::Config(_) => gst::error_msg!(gst::ResourceError::Settings, ("{}", error)),
    }
}
