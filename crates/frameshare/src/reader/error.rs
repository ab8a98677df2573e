// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of a reader.

use super::connection::TrustedUsers;
use crate::{endpoint::Endpoint, fence::FenceError, memory::MemoryError, sys::note_on_user};
use frameshare_core::{
    SENT_OVER_WAKE,
    reader::{End, Violation},
};
use frameshare_cuda::device::{Device, Uuid};
use frameshare_protocol::{
    AreaIndex, Sequence,
    limits::MAX_CREDIT,
    message::{DecodeError, Reason, TooLong},
};
use std::{io, time::Duration};

/// A value of [`Config`](super::Config) outside of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// [`Config::max_held`](super::Config::max_held).
    #[error("max_held is {0}, but must be 0 to {MAX_CREDIT}")]
    MaxHeld(u32),
    /// [`Config::max_queued`](super::Config::max_queued).
    #[error("max_queued is {0}, but must be 0 to {MAX_CREDIT}")]
    MaxQueued(u32),
    /// [`Config::spin`](super::Config::spin).
    #[error("spin is {0}, but is a share of a core in percent: set it to 0 (sleep) to 100 (always spin)")]
    Spin(u32),
    /// [`Config::fence_timeout`](super::Config::fence_timeout).
    #[error("fence_timeout is 0, but GPU work takes time: set it to some milliseconds at least")]
    ZeroFenceTimeout,
    /// [`Config::exporter_uid`](super::Config::exporter_uid).
    #[error(
        "exporter_uid is {0}, which stands for every user that this user namespace does not map: map the exporter's user"
    )]
    UnmappedUser(u32),
    /// [`Config::exporter_uid`](super::Config::exporter_uid), for an abstract socket.
    #[error(
        "every process can bind an abstract socket: set exporter_uid to the user that the exporter runs as"
    )]
    AbstractOfAnyUser,
    /// The configuration does not fit into the first message.
    #[error("the configuration does not fit into a message: {0}")]
    Hello(#[source] TooLong),
}

/// The reason why a reader could not connect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
    #[error("the exporter at {endpoint} runs as user {found}{}, but frames are taken from {expected} alone", note_on_user(*.found, "this"))]
    WrongUser {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The exporter's user by `SO_PEERCRED`: the one that called listen(2).
        found: u32,
        /// The accepted users, and the reason: see
        /// [`Config::exporter_uid`](super::Config::exporter_uid).
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
    Violation(#[from] ProtocolViolation),
    /// The frames are on a GPU that this process cannot see.
    #[error("the frames are on GPU or MIG instance {gpu}, which this process cannot see")]
    GpuNotVisible {
        /// The exporter's GPU.
        gpu: Uuid,
    },
    /// The frames are on a GPU that the reader's GPU cannot access.
    #[error("the frames are on {exporter}, which {reader} cannot read")]
    GpuOutOfReach {
        /// The exporter's GPU.
        gpu: Uuid,
        /// The exporter's GPU, as this process sees it.
        exporter: Box<Device>,
        /// The GPU of the reader's context.
        reader: Box<Device>,
    },
    /// The events of the exporter cannot be opened.
    #[error("event fences need a /dev/shm that both processes share: share it, or use timeline fences ({0})")]
    EventsNotShared(#[source] frameshare_cuda::Error),
    /// The exporter in this process uses another CUDA context, in which its events cannot be
    /// recorded.
    #[error("within one process event fences need the exporter's CUDA context: use timeline fences")]
    EventsOfOtherContext,
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
    #[error(transparent)]
    Config(#[from] ConfigError),
}

impl ConnectError {
    /// Returns whether a reader without a GPU would not have met the error.
    pub(super) fn is_of_gpu(&self) -> bool {
        matches!(self, Self::EventsNotShared(_) | Self::EventsOfOtherContext | Self::Driver(_))
    }
}

/// The reason why a reader cannot continue.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The wait was interrupted; the reader can continue.
    #[error("interrupted")]
    Interrupted,
    /// The reader holds all frames that it may, and a wait without limit has lasted for some
    /// seconds; the reader can continue.
    #[error(
        "this reader holds {held} frames and may hold no more: drop some, or set max_held to more \
         (the exporter's max_held_limit bounds it)"
    )]
    Held {
        /// Number of frames that it holds.
        held: u32,
    },
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
        sequence: Sequence,
        /// The limit: [`Config::fence_timeout`](super::Config::fence_timeout).
        limit: Duration,
        /// Frames that were delivered before a ready fence that was never signaled.
        torn: u64,
        /// Published frames that could not be delivered.
        lost: u64,
    },
    /// The release fence of this reader can no longer be signaled.
    #[error("frames can no longer be released: {0}")]
    Fence(#[source] FenceError),
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
    Violation(#[from] ProtocolViolation),
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

/// A rule of the protocol that the exporter broke. Its other readers may be unaffected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolViolation {
    /// The order of messages and frames, or what a frame refers to, is against the rules.
    #[error(transparent)]
    Rule(#[from] Violation),
    /// A packet is longer than any message, or has too many descriptors.
    #[error("invalid packet: {0}")]
    Packet(#[source] io::Error),
    /// A packet is no message of this version.
    #[error(transparent)]
    Message(DecodeError),
    /// A message came with too few or too many descriptors.
    #[error("a message came with a wrong number of descriptors")]
    DescriptorCount,
    /// Descriptors came over the wake-up socket.
    #[error("{}", SENT_OVER_WAKE)]
    DescriptorOverWake,
    /// The answer to `Hello` was neither `Welcome` nor `Refused`.
    #[error("it answered Hello with another message than Welcome or Refused")]
    UnexpectedAnswer,
    /// A shared page does not have the agreed size or seals.
    #[error("invalid shared page: {0}")]
    Page(#[source] io::Error),
    /// Large metadata areas were announced twice.
    #[error("large metadata areas were announced twice")]
    RepeatedAreas,
    /// The queue page is of another version.
    #[error("the queue page is of another version")]
    QueueVersion,
    /// The wake-up socket is none.
    #[error("invalid wake-up socket: {0}")]
    WakeSocket(#[source] io::Error),
    /// The fence is of a kind that the reader did not offer.
    #[error("it selected a fence that this reader did not offer")]
    FenceNotOffered,
    /// The exporter began to use a GPU for a reader that offered none, or did so twice.
    #[error("it uses a GPU that this reader did not offer")]
    GpuNotOffered,
    /// The ready values of a fence are invalid.
    #[error(transparent)]
    Fence(FenceError),
    /// The memory file of a payload does not have the agreed size or seals.
    #[error("invalid payload: {0}")]
    Payload(#[source] io::Error),
    /// The metadata of a frame is in an area that does not exist.
    #[error("frame {sequence} has its metadata in the unknown area {area}")]
    UnknownArea {
        /// The frame.
        sequence: Sequence,
        /// The area.
        area: AreaIndex,
    },
    /// Every frame is revoked at the moment of its claim.
    #[error("{count} frames in a row were revoked at the moment of their claim")]
    Revocations {
        /// Number of frames.
        count: u32,
    },
}

impl From<Violation> for ReadError {
    #[cold]
    fn from(violation: Violation) -> Self {
        Self::Violation(violation.into())
    }
}

impl ReadError {
    /// The error for the application at the end of its connection, with the number of torn and of
    /// undelivered frames.
    pub(super) fn of_end(end: End, torn: u64, lost: u64) -> Self {
        match end {
            End::HungUp => Self::Gone { torn, lost },
            End::Stalled { sequence, limit } => Self::Stalled { sequence, limit, torn, lost },
            End::Closed(Reason::Stopped, text) => Self::Stopped(text),
            End::Closed(reason, text) => Self::CutOff { reason, text },
        }
    }

    /// Returns whether the exporter is dead, stopped or failed, so that another may start: with
    /// [`Config::reconnect`](super::Config::reconnect) the reader searches for it.
    pub fn is_exporter_gone(&self) -> bool {
        match self {
            Self::Stopped(_) | Self::Gone { .. } | Self::Stalled { .. } => true,
            Self::CutOff { reason, .. } => *reason == Reason::Failed,
            Self::Interrupted
            | Self::Held { .. }
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
        if error.is_map_failed() { Self::EventsNotShared(error) } else { error.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names_torn_and_undelivered_frames() {
        let limit = Duration::from_secs(1);
        let stalled = End::Stalled { sequence: Sequence(7), limit };
        let (hung_up, stalled) = (ReadError::of_end(End::HungUp, 1, 2), ReadError::of_end(stalled, 3, 4));
        assert!(matches!(hung_up, ReadError::Gone { torn: 1, lost: 2 }), "{hung_up:?}");
        assert!(
            matches!(stalled, ReadError::Stalled { sequence: Sequence(7), torn: 3, lost: 4, .. }),
            "{stalled:?}"
        );
    }

    #[test]
    fn close_message_of_a_stopped_exporter_is_no_eviction() {
        let error = |reason| ReadError::of_end(End::Closed(reason, "it has stopped".into()), 0, 0);
        let stopped = error(Reason::Stopped);
        assert!(matches!(&stopped, ReadError::Stopped(text) if text == "it has stopped"), "{stopped:?}");
        let evicted = error(Reason::Violation);
        assert!(matches!(evicted, ReadError::CutOff { reason: Reason::Violation, .. }), "{evicted:?}");
    }
}
