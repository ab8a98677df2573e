// SPDX-License-Identifier: MIT OR Apache-2.0

//! The engine's errors as GStreamer messages: domain, code, and advice.

use frameshare::exporter::BindError;

/// Returns the message of a stream that could not be opened. The error's own text names the
/// endpoint, and the process that uses it.
pub(crate) fn bind(error: &BindError) -> gst::ErrorMessage {
    match error {
        BindError::InUse { .. } => gst::error_msg!(gst::ResourceError::Busy, ("{}", error)),
        BindError::Io { .. } => gst::error_msg!(gst::ResourceError::OpenWrite, ("{}", error)),
        BindError::Setup { .. } => gst::error_msg!(
            gst::ResourceError::Failed,
            (
                "{}; check the limits of this process, of open files and of memory, and the GPU if it has one",
                error
            )
        ),
        BindError::Config(_) => gst::error_msg!(gst::ResourceError::Settings, ("{}", error)),
        _ => gst::error_msg!(gst::ResourceError::Failed, ("{}", error)),
    }
}
