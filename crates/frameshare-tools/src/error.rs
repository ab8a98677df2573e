// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors and exit statuses.

use frameshare::{EndpointError, Reason, observer::ObserveError};
use std::{io, process::ExitCode};

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "invalid stream {text:?}: {why}; give a name such as cam0, or the path of a socket such as ./cam0.sock"
    )]
    InvalidStream { text: String, why: String },
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    #[error("{0}{hint}", hint = hint(.0))]
    Observe(#[from] ObserveError),
    #[error("cannot list the streams: {0}")]
    List(io::Error),
    #[error("cannot write to stdout: {0}")]
    Output(io::Error),
    #[error("cannot write {path}: {source}", path = .path.display())]
    File { path: std::path::PathBuf, source: io::Error },
}

/// Returns what to do about an error.
fn hint(error: &ObserveError) -> &'static str {
    match error {
        ObserveError::NotThere { .. } => {
            ": `frameshare list` lists the streams that are shared now (FRAMESHARE_PATH adds folders to it)"
        }
        ObserveError::PermissionDenied { .. } => {
            ": run this as the exporter's user, or have the exporter admit you (allowed-uids, socket-mode)"
        }
        _ => "",
    }
}

impl Error {
    /// Returns whether stdout is a pipe whose reader has exited, such as `head`.
    pub fn is_closed_output(&self) -> bool {
        matches!(self, Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Returns the exit status, as in the help of the command.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::InvalidStream { .. } | Self::Endpoint(_) => 2,
            Self::Observe(ObserveError::NotThere { .. } | ObserveError::NoSuchReader { .. }) => 3,
            Self::Observe(
                ObserveError::PermissionDenied { .. }
                | ObserveError::MayNotDisconnect { .. }
                | ObserveError::Refused { reason: Reason::PermissionDenied, .. },
            ) => 4,
            _ => 1,
        })
    }
}
