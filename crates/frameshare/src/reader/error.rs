// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of a reader.

use crate::{endpoint::Endpoint, memory::MemoryError};
use frameshare_protocol::message::{DecodeError, Reason};
use std::{io, time::Duration};

/// The reason why a reader could not connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no exporter.
    #[error("no exporter at {endpoint} after {waited:?}")]
    NotThere {
        /// The endpoint that was searched.
        endpoint: Endpoint,
        /// Duration of the search.
        waited: Duration,
    },
    /// An exporter's socket exists but nothing answers: the process is stopped or hangs, or a
    /// forked child of a dead exporter keeps the socket open.
    #[error(
        "the exporter at {endpoint} has not answered within {waited:?}: its process is stopped, or hangs"
    )]
    NotAnswering {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// Time since the search began.
        waited: Duration,
    },
    /// The exporter runs as a user that this reader does not accept.
    #[error("the exporter at {endpoint} runs as user {found}, but frames are taken from {expected} alone")]
    WrongUser {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The exporter's user by `SO_PEERCRED`: the one that called listen(2).
        found: u32,
        /// The accepted users, and the reason: see
        /// [`Config::exporter_uid`](super::Config::exporter_uid).
        expected: String,
    },
    /// The socket's file mode denies this user access.
    #[error(
        "permission denied at {endpoint}: its exporter runs as another user, and neither its folder nor its socket lets this one in"
    )]
    PermissionDenied {
        /// The stream's endpoint.
        endpoint: Endpoint,
    },
    /// The exporter refuses this reader.
    #[error("refused by the exporter: {text}")]
    Refused {
        /// The reason.
        reason: Reason,
        /// The reason, for people.
        text: String,
    },
    /// The peer uses another version, or another protocol.
    #[error(transparent)]
    Protocol(#[from] DecodeError),
    /// The exporter violates the protocol.
    #[error("the exporter violated the protocol: {0}")]
    Violation(String),
    /// The frames are on a GPU that the reader's context does not reach.
    #[error("{text}")]
    GpuOutOfReach {
        /// The exporter's GPU.
        gpu: frameshare_cuda::device::Uuid,
        /// The reason, for people.
        text: String,
    },
    /// The frames are on a GPU that this reader cannot use as configured.
    #[error("{0}")]
    Gpu(String),
    /// The CUDA driver failed.
    #[error(transparent)]
    Driver(#[from] frameshare_cuda::Error),
    /// The wait was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// Another error of the system.
    #[error("cannot connect to {endpoint}: {source}")]
    Io {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// The configuration is invalid.
    #[error("{0}")]
    Config(String),
}

/// The reason why a reader cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The wait was interrupted; the reader can continue.
    #[error("interrupted")]
    Interrupted,
    /// The exporter closed the stream, without an end of stream.
    #[error("{}", stopped(.0))]
    Stopped(String),
    /// The connection was lost without a close message.
    #[error("connection to the exporter lost: it exited without closing the stream (crashed or killed){}", and_unwritten(*.torn, *.lost))]
    Gone {
        /// Frames that were delivered before a ready fence that was never signaled: their content
        /// is invalid.
        torn: u64,
        /// Published frames that could not be delivered, because they were not written or the
        /// reader had no credit. They count as lost.
        lost: u64,
    },
    /// The exporter's GPU work on a frame did not complete in time.
    #[error("frame {sequence} was not written within {limit:?}: the exporter's GPU has failed or hangs{}", and_unwritten(*.torn, *.lost))]
    Stalled {
        /// The frame.
        sequence: u64,
        /// The limit: [`Config::fence_timeout`](super::Config::fence_timeout).
        limit: Duration,
        /// Frames that were delivered before a ready fence that was never signaled.
        torn: u64,
        /// Published frames that could not be delivered.
        lost: u64,
    },
    /// The release fence of this reader can no longer be signaled.
    #[error("frames can no longer be released: {0}")]
    Fence(String),
    /// The exporter evicted this reader.
    #[error("evicted by the exporter: {text}")]
    CutOff {
        /// The reason.
        reason: Reason,
        /// The reason, for people.
        text: String,
    },
    /// The connection was lost, and no next exporter was found.
    #[error("connection to the exporter lost, and no next one found: {0}")]
    NotBack(#[source] ConnectError),
    /// The exporter began to use a GPU that this reader cannot use as configured.
    #[error("{0}")]
    Gpu(#[source] ConnectError),
    /// The exporter violates the protocol.
    #[error("the exporter violated the protocol: {0}")]
    Violation(String),
    /// An event, or the metadata of a frame, exceeds this reader's limit.
    #[error("metadata of {size} bytes exceeds the limit of {limit}")]
    TooMuchMetadata {
        /// Its size in bytes.
        size: u64,
        /// [`Config::max_metadata_bytes`](super::Config::max_metadata_bytes).
        limit: u64,
    },
    /// A slot could not be imported.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A system call failed.
    #[error("cannot receive from the exporter: {0}")]
    Io(#[source] io::Error),
}

impl ReadError {
    /// Returns whether the exporter is dead, stopped or failed, so that another may start: with
    /// [`Config::reconnect`](super::Config::reconnect) the reader searches for it.
    pub fn is_exporter_gone(&self) -> bool {
        match self {
            Self::Stopped(_) | Self::Gone { .. } | Self::Stalled { .. } => true,
            Self::CutOff { reason, .. } => *reason == Reason::Failed,
            Self::Interrupted
            | Self::Fence(_)
            | Self::NotBack(_)
            | Self::Gpu(_)
            | Self::Violation(_)
            | Self::TooMuchMetadata { .. }
            | Self::Memory(_)
            | Self::Io(_) => false,
        }
    }
}

fn stopped(text: &str) -> String {
    const STOPPED: &str = "the exporter has stopped";
    if text.is_empty() || text == STOPPED { STOPPED.into() } else { format!("{STOPPED}: {text}") }
}

fn and_unwritten(torn: u64, lost: u64) -> String {
    let mut text = String::new();
    if torn > 0 {
        text += &format!("; {torn} delivered frames were never written and are torn");
    }
    if lost > 0 {
        text += &format!("; {lost} published frames were not delivered and are lost");
    }
    text
}

impl ConnectError {
    /// Converts the error of opening events, with its usual reasons.
    pub(super) fn of_events(error: frameshare_cuda::Error) -> Self {
        if error.is_map_failed() {
            Self::Gpu(format!(
                "event fences need a /dev/shm that both processes share: share it, or use timeline fences ({error})"
            ))
        } else {
            error.into()
        }
    }
}
