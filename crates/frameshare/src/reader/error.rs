//! What can go wrong for a reader, and what to do about it.

use crate::{endpoint::Endpoint, memory::MemoryError};
use frameshare_protocol::message::{DecodeError, Reason};
use std::{io, time::Duration};

/// Why a reader could not connect.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// There is no exporter.
    #[error("no exporter at {endpoint} after {waited:?}")]
    NotThere {
        /// Where it was looked for.
        endpoint: Endpoint,
        /// For how long.
        waited: Duration,
    },
    /// An exporter's socket is there, but nothing answers: the process is stopped or hangs, or a forked child of an exporter
    /// that is gone keeps the socket open.
    #[error(
        "the exporter at {endpoint} has not answered within {waited:?}: its process is stopped, or hangs"
    )]
    NotAnswering {
        /// The stream's place.
        endpoint: Endpoint,
        /// Time since the search began.
        waited: Duration,
    },
    /// The exporter runs as a user that this reader takes no frames from.
    #[error("the exporter at {endpoint} runs as user {found}, but frames are taken from {expected} alone")]
    WrongUser {
        /// The stream's place.
        endpoint: Endpoint,
        /// The exporter's user, as of `SO_PEERCRED`: the one that called listen(2).
        found: u32,
        /// The users that would do, and why: see [`Config::exporter_uid`](super::Config::exporter_uid).
        expected: String,
    },
    /// The socket's file mode keeps this user out.
    #[error(
        "permission denied at {endpoint}: its exporter runs as another user, and neither its folder nor its socket lets this one in"
    )]
    PermissionDenied {
        /// The stream's place.
        endpoint: Endpoint,
    },
    /// The exporter does not admit this reader.
    #[error("refused by the exporter: {text}")]
    Refused {
        /// Why.
        reason: Reason,
        /// Why, in words.
        text: String,
    },
    /// The other side speaks another version, or another protocol.
    #[error(transparent)]
    Protocol(#[from] DecodeError),
    /// The exporter breaks the rules of the protocol.
    #[error("the exporter broke the protocol: {0}")]
    Violation(String),
    /// The frames are on a GPU that the reader's context does not reach.
    #[error("{text}")]
    GpuOutOfReach {
        /// The exporter's GPU.
        gpu: frameshare_cuda::device::Uuid,
        /// Why, in words.
        text: String,
    },
    /// The frames are on a GPU that this reader cannot use as it asked to.
    #[error("{0}")]
    Gpu(String),
    /// The CUDA driver failed.
    #[error(transparent)]
    Driver(#[from] frameshare_cuda::Error),
    /// The wait was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// Something else.
    #[error("cannot connect to {endpoint}: {source}")]
    Io {
        /// The stream's place.
        endpoint: Endpoint,
        /// What the system said.
        source: io::Error,
    },
    /// The configuration makes no sense.
    #[error("{0}")]
    Config(String),
}

/// Why a reader cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The wait was interrupted; the reader can go on.
    #[error("interrupted")]
    Interrupted,
    /// The exporter has stopped in good order, without an end of stream.
    #[error("{}", stopped(.0))]
    Stopped(String),
    /// The exporter has gone without a word.
    #[error("the exporter is gone without a goodbye: it crashed or was killed{}", and_unwritten(*.torn, *.lost))]
    Gone {
        /// Frames that were delivered ahead of a fence that never came: their content is not to be trusted.
        torn: u64,
        /// Frames that were published and could not be delivered, since they were not written or there was no credit left
        /// for them. They count as lost.
        lost: u64,
    },
    /// The exporter's GPU work on a frame did not end in time.
    #[error("frame {sequence} was not written within {limit:?}: the exporter's GPU has failed or hangs{}", and_unwritten(*.torn, *.lost))]
    Stalled {
        /// The frame.
        sequence: u64,
        /// How long that was waited for: [`Config::fence_timeout`](super::Config::fence_timeout).
        limit: Duration,
        /// As above.
        torn: u64,
        /// As above.
        lost: u64,
    },
    /// This reader's GPU work can no longer be signalled.
    #[error("frames can no longer be released: {0}")]
    Fence(String),
    /// The exporter ended this reader's connection.
    #[error("cut off by the exporter: {text}")]
    CutOff {
        /// Why.
        reason: Reason,
        /// Why, in words.
        text: String,
    },
    /// The exporter was gone, and none came back.
    #[error("the exporter is gone and did not come back: {0}")]
    NotBack(#[source] ConnectError),
    /// The exporter began to use a GPU that this reader cannot use as it asked to.
    #[error("{0}")]
    Gpu(#[source] ConnectError),
    /// The exporter breaks the rules of the protocol.
    #[error("the exporter broke the protocol: {0}")]
    Violation(String),
    /// An event, or the metadata of a frame, is larger than this reader takes.
    #[error("metadata of {size} bytes: this reader takes {limit}")]
    TooMuchMetadata {
        /// Its bytes.
        size: u64,
        /// [`Config::max_metadata_bytes`](super::Config::max_metadata_bytes).
        limit: u64,
    },
    /// A slot could not be imported.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The system failed.
    #[error("cannot hear the exporter: {0}")]
    Io(#[source] io::Error),
}

impl ReadError {
    /// Whether the exporter is gone or has failed, so that another may come: with
    /// [`Config::reconnect`](super::Config::reconnect) the reader looks for it.
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
        text += &format!("; {torn} frames were delivered before they were written and are torn");
    }
    if lost > 0 {
        text += &format!("; {lost} frames were published and did not get here, and are lost");
    }
    text
}

impl ConnectError {
    /// Events that could not be opened, with the usual reasons.
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
