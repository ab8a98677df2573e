// SPDX-License-Identifier: MIT OR Apache-2.0

//! The engine's errors as GStreamer messages: domain, code, and advice.

use frameshare::exporter::{BindError, ConfigError};

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
        BindError::Config(config) => gst::error_msg!(gst::ResourceError::Settings, ("{}", of_config(config))),
        _ => gst::error_msg!(gst::ResourceError::Failed, ("{}", error)),
    }
}

/// The text of a configuration error, which names the sink's properties.
fn of_config(error: &ConfigError) -> String {
    match error {
        ConfigError::NamedForOthers => {
            "allowed-uids, allowed-gids and socket-mode need a socket-path, in a folder \
            that the others may enter: the folder of streams that have a name is closed to other users"
                .into()
        }
        ConfigError::OthersKeptOut(mode) => format!(
            "allowed-uids and allowed-gids let others read, and socket-mode 0{mode:o} keeps them out: set it to 0660 \
             for the socket's group, or to 0666, which lets everybody connect and be refused"
        ),
        ConfigError::AbstractMode(mode) => format!(
            "socket-mode is 0{mode:o}, and an abstract socket has no mode: allowed-uids and allowed-gids say who may read"
        ),
        ConfigError::Unmapped { field, .. } => error.to_string().replace(field, &field.replace('_', "-")),
        other => other.to_string(),
    }
}
