// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of an exporter.

use crate::{endpoint::Endpoint, memory::select::Lacking};
use frameshare_protocol::limits::{MAX_CREDIT, MAX_PAYLOAD, MAX_SLOTS};
use std::io;

/// Minimum of [`Config::max_slots`](super::Config::max_slots): one reader's credit, and two more.
pub(super) const MIN_SLOTS: u32 = 4;

/// The reason why an exporter could not be set up.
pub type SetupError = Box<dyn std::error::Error + Send + Sync>;

/// The reason why a stream could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The name is in use.
    #[error("the stream {endpoint} is in use, held by {holder}: choose another name, or stop that process")]
    InUse {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The process that uses it, for people.
        holder: String,
    },
    /// The socket could not be made.
    #[error("cannot open {endpoint}: {source}{}", hint(.source))]
    Io {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// The thread that serves readers could not be started.
    #[error(
        "cannot serve readers of {endpoint}: {source} (raise the limit of tasks: ulimit -u, or the cgroup's)"
    )]
    NoThread {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The system's error.
        source: io::Error,
    },
    /// A resource could not be made: shared pages, descriptors, GPU streams.
    #[error("cannot set up {endpoint}: {source}")]
    Setup {
        /// The stream's endpoint.
        endpoint: Endpoint,
        /// The error of the system or the CUDA driver.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The configuration is invalid, or asks for something that this machine lacks.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// The reason why a configuration was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The number of slots is out of range.
    #[error("max_slots is {0}, but must be {MIN_SLOTS} to {MAX_SLOTS}")]
    MaxSlots(u32),
    /// The maximum number of leases of a reader is out of range.
    #[error("max_held_limit is {0}, but must be 1 to {MAX_CREDIT}")]
    MaxHeldLimit(u32),
    /// The limit of the kept units is out of range.
    #[error("max_gop_bytes is {0}, but must be 0 to {MAX_PAYLOAD}")]
    MaxGopBytes(u64),
    /// More frames are kept than there can be.
    #[error("history is {0:?}, but must be 0, or 1 to keep the last frame")]
    History(String),
    /// The mode of the socket has other bits than those of permissions.
    #[error("socket_mode is 0{0:o}, but must be 0 to 0777")]
    SocketMode(u32),
    /// Others may read, but the folder of named streams is closed to them.
    #[error(
        "allowed_uids, allowed_gids and socket_mode need a socket path, in a folder that the others may \
         enter: the folder of streams that have a name is closed to other users"
    )]
    NamedForOthers,
    /// A mode for an abstract socket.
    #[error(
        "socket_mode is 0{0:o}, and an abstract socket has no mode: allowed_uids and allowed_gids say who may read"
    )]
    AbstractMode(u32),
    /// Others may read, but the mode of the socket lets none of them connect.
    #[error(
        "allowed_uids and allowed_gids let others read, and socket_mode 0{0:o} keeps them out: set it to 0660 \
         for the socket's group, or to 0666, which lets everybody connect and be refused"
    )]
    OthersKeptOut(u32),
    /// A number in `allowed_uids`, `allowed_gids` or `trusted_uids` stands for every user or group
    /// that has none in this user namespace.
    #[error(
        "{field} contains {id}, which stands for all that this user namespace does not map: map the reader's \
         user, or run the exporter outside of the namespace"
    )]
    Unmapped {
        /// The field of the configuration.
        field: &'static str,
        /// The number: the system's overflow user or group.
        id: u32,
    },
    /// This machine lacks the memory that was asked for.
    #[error(transparent)]
    Lacking(#[from] Lacking),
}

/// Returns advice for a system error, if there is any.
fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (create the folder, or set XDG_RUNTIME_DIR to one that exists)",
        io::ErrorKind::ReadOnlyFilesystem => " (choose a folder that can be written)",
        // An error text of this crate gives its own advice.
        io::ErrorKind::PermissionDenied if error.raw_os_error().is_some() => {
            " (choose a folder that this user can write, or set XDG_RUNTIME_DIR to one)"
        }
        _ if matches!(error.raw_os_error(), Some(libc::EMFILE)) => {
            " (raise the limit of open files: ulimit -n)"
        }
        _ => "",
    }
}

/// The reason why an exporter cannot begin to use a GPU.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UseGpuError {
    /// It has one.
    #[error("the exporter has a GPU already")]
    HasGpu,
    /// This machine lacks the memory that was asked for.
    #[error(transparent)]
    Lacking(#[from] Lacking),
    /// The driver failed.
    #[error(transparent)]
    Driver(#[from] frameshare_cuda::Error),
}

/// A wait that an [`Interrupt`](crate::Interrupt) ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// An event whose payload is longer than the protocol allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of {0} bytes is longer than the {max} that one may have", max = frameshare_protocol::limits::MAX_PAYLOAD)]
pub struct EventTooLong(pub usize);
