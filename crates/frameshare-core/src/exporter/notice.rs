// SPDX-License-Identifier: MIT OR Apache-2.0

//! Notices of an exporter to its owner.

use frameshare_protocol::{Policy, message::Reason};
use std::time::Duration;

/// Identity of a reader.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReaderInfo {
    /// Unique among all readers of this exporter, past ones included.
    pub id: u64,
    /// Its process, reported by the kernel.
    pub pid: u32,
    /// Its user, reported by the kernel.
    pub uid: u32,
    /// The name that it gave itself.
    pub name: String,
    /// Its policy.
    pub policy: Policy,
    /// Maximum number of its leases.
    pub credit: u32,
    /// Maximum number of its untaken frames.
    pub max_queued: u32,
}

/// An event of a reader or of the stream's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The reader was admitted.
    ReaderAdded(ReaderInfo),
    /// The reader disconnected, died, or was evicted.
    ReaderRemoved {
        /// The reader.
        reader: ReaderInfo,
        /// `Stopped` if the reader disconnected or died; any other reason says why it was evicted.
        reason: Reason,
        /// The reason, for people.
        why: String,
    },
    /// A reader or an observer was refused, or an observer was disconnected for the reason.
    ReaderRefused {
        /// Its process, reported by the kernel; 0 if the kernel cannot tell it in this PID
        /// namespace.
        pid: u32,
        /// Its user.
        uid: u32,
        /// The reason, for people.
        why: String,
    },
    /// A lossless reader has held the stream back for a while.
    ReaderBlocking {
        /// The reader.
        reader: ReaderInfo,
        /// Duration so far.
        blocked_for: Duration,
    },
    /// Readers can no longer connect: the socket, its lock file or its folder was removed or
    /// replaced, and no new one could be bound. The exporter tries again every few seconds.
    SocketLost {
        /// The reason, for people.
        why: String,
    },
    /// The kernel lets readers of other users write into shared memory through `/dev/udmabuf`, or
    /// may let them. Reported once, when the stream is opened, and only where other users may read.
    OthersCouldWrite {
        /// Readers of other users are refused. If not, the device could not be probed, and they are
        /// admitted.
        refused: bool,
        /// The reason, for people.
        why: String,
    },
    /// A reader of the exporter's own user, or root's, joined an encoded stream between two key
    /// units, or asked for a key unit: the encoder should make one soon. At most one notice a
    /// second.
    KeyUnitWanted,
    /// One more reader of the exporter's own user copies the frames of the present format into its
    /// default layout.
    LayoutCopied {
        /// The number of these readers.
        readers: usize,
    },
    /// The socket was removed, and a new one is bound in its place. Readers can connect.
    SocketBound,
    /// The engine has failed, and closed the stream: nothing can be published any more.
    Failed {
        /// The reason, for people.
        why: String,
    },
}
