// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of an observer.

use crate::{
    Endpoint,
    reader::{ProtocolViolation, TrustedUsers},
    sys::note_on_user,
};
use frameshare_protocol::message::{DecodeError, Reason, TooLong};
use std::{io, time::Duration};

/// The reason why a stream cannot be observed, or a request of an observer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// No process listens at the endpoint.
    #[error("no exporter at {endpoint}")]
    NotThere {
        /// The stream's endpoint.
        endpoint: Endpoint,
    },
    /// The exporter did not answer in time.
    #[error("the exporter at {endpoint} has not answered within {limit:?}: its process is stopped, or hangs")]
    NotAnswering {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The limit.
        limit: Duration,
    },
    /// The exporter runs as a user that this process does not accept.
    #[error("the exporter at {endpoint} runs as user {found}{}, but {expected} was expected", note_on_user(*.found, "this"))]
    WrongUser {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The exporter's user by `SO_PEERCRED`.
        found: u32,
        /// The accepted users, and the reason.
        expected: TrustedUsers,
    },
    /// The socket's file mode denies this user access.
    #[error(
        "permission denied at {endpoint}: its exporter runs as another user, and neither its folder nor its socket lets this one in"
    )]
    PermissionDenied {
        /// The stream's endpoint.
        endpoint: Endpoint,
    },
    /// The exporter refuses this observer.
    #[error("refused by the exporter: {text}")]
    Refused {
        /// The reason.
        reason: Reason,
        /// The reason, for people.
        text: String,
    },
    /// The exporter has closed the connection.
    #[error("closed by the exporter: {text}")]
    Closed {
        /// The reason: [`Reason::Stopped`] at the end of the stream.
        reason: Reason,
        /// The reason, for people.
        text: String,
    },
    /// The connection was lost without a close message.
    #[error("connection to the exporter lost: it exited without closing the stream (crashed or killed)")]
    Gone,
    /// No reader has this number.
    #[error("the stream has no reader {reader}: it has left, or the number is wrong")]
    NoSuchReader {
        /// Number of the reader.
        reader: u64,
    },
    /// This process may not disconnect readers.
    #[error("reader {reader} was not disconnected: only the exporter's user and root may do that")]
    MayNotDisconnect {
        /// Number of the reader.
        reader: u64,
    },
    /// The peer uses another version, or another protocol.
    #[error(transparent)]
    Protocol(#[from] DecodeError),
    /// The exporter violates the protocol.
    #[error("the exporter violated the protocol: {0}")]
    Violation(#[from] ProtocolViolation),
    /// A request does not fit into a message.
    #[error(transparent)]
    Request(#[from] TooLong),
    /// Another error of the system.
    #[error("cannot observe {endpoint}: {source}")]
    Io {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
}
