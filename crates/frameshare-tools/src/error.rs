// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors and exit statuses.

use frameshare::{
    EndpointError, Reason,
    observer::ObserveError,
    reader::{ConnectError, ReadError},
};
use std::{io, net::SocketAddr, process::ExitCode};

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
    #[error("{0}{hint}", hint = connect_hint(.0))]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{}", ambiguous(.reader, .ids))]
    Reader { reader: String, ids: Vec<u64> },
    #[error("cannot serve metrics at {address}: {source}; another address is set by --listen")]
    Listen { address: SocketAddr, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("{errors} of the checks failed")]
    Doctor { errors: usize },
    #[error("cannot use the terminal: {0}; -b prints tables instead")]
    Terminal(io::Error),
    #[error("cannot handle signals: {0}")]
    Signals(io::Error),
    #[error("cannot list the streams: {0}")]
    List(io::Error),
    #[error("cannot write to stdout: {0}")]
    Output(io::Error),
    #[error("cannot write {path}: {source}", path = .path.display())]
    File { path: std::path::PathBuf, source: io::Error },
}

const NOT_THERE: &str =
    ": `frameshare list` lists the streams that are shared now (FRAMESHARE_PATH adds folders to it)";
const NOT_ADMITTED: &str =
    ": run this as the exporter's user, or have the exporter admit you (allowed-uids, socket-mode)";

/// Returns what to do about an error of an observer.
fn hint(error: &ObserveError) -> &'static str {
    match error {
        ObserveError::NotThere { .. } => NOT_THERE,
        ObserveError::PermissionDenied { .. } => NOT_ADMITTED,
        _ => "",
    }
}

/// Returns what to do about an error of a reader.
fn connect_hint(error: &ConnectError) -> &'static str {
    match error {
        ConnectError::NotThere { .. } => NOT_THERE,
        ConnectError::PermissionDenied { .. } => NOT_ADMITTED,
        ConnectError::Refused { reason: Reason::NoCreditLeft, .. } => {
            ": end a reader, or give the exporter more slots (max-slots)"
        }
        _ => "",
    }
}

fn ambiguous(reader: &str, ids: &[u64]) -> String {
    match ids {
        [] => format!("no reader is named {reader:?}: `frameshare info STREAM` lists the readers"),
        ids => {
            let ids = ids.iter().map(u64::to_string).collect::<Vec<_>>().join(", ");
            format!("readers {ids} are named {reader:?}: give the number of one")
        }
    }
}

impl Error {
    /// Returns whether the user has ended the command: by a signal, or by the exit of the process
    /// that reads stdout, such as `head`.
    pub fn is_end(&self) -> bool {
        match self {
            Self::Output(error) => error.kind() == io::ErrorKind::BrokenPipe,
            Self::Connect(error) => matches!(error, ConnectError::Interrupted),
            _ => false,
        }
    }

    /// Returns the exit status, as in the help of the command.
    pub fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::InvalidStream { .. } | Self::Endpoint(_) => 2,
            Self::Observe(ObserveError::NotThere { .. } | ObserveError::NoSuchReader { .. }) => 3,
            Self::Connect(ConnectError::NotThere { .. }) => 3,
            Self::Reader { ids, .. } => {
                if ids.is_empty() {
                    3
                } else {
                    2
                }
            }
            Self::Connect(
                ConnectError::PermissionDenied { .. }
                | ConnectError::Refused { reason: Reason::PermissionDenied, .. },
            ) => 4,
            Self::Observe(
                ObserveError::PermissionDenied { .. }
                | ObserveError::MayNotDisconnect { .. }
                | ObserveError::Refused { reason: Reason::PermissionDenied, .. },
            ) => 4,
            _ => 1,
        })
    }
}
