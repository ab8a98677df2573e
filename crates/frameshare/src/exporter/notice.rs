//! What an exporter tells its owner of its readers.

use frameshare_protocol::{Policy, message::Reason};
use std::time::Duration;

/// A reader, as its exporter knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderInfo {
    /// A number that no other reader of this exporter had or will have.
    pub id: u64,
    /// Its process, as the kernel says.
    pub pid: u32,
    /// Its user, as the kernel says.
    pub uid: u32,
    /// What it calls itself.
    pub name: String,
    /// What happens to frames that it has no credit for.
    pub policy: Policy,
    /// How many leases it may hold.
    pub credit: u32,
}

/// Something that happened to a reader, or to the stream's socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// It was admitted.
    ReaderAdded(ReaderInfo),
    /// It left or was cut off.
    ReaderRemoved {
        /// The reader.
        reader: ReaderInfo,
        /// What kind of end it was: `Stopped` if the reader left or was killed, all others say why it was cut off.
        reason: Reason,
        /// Why, in words.
        why: String,
    },
    /// It was not admitted.
    ReaderRefused {
        /// Its process, as the kernel says; 0 if the kernel cannot tell it in this PID namespace.
        pid: u32,
        /// Its user.
        uid: u32,
        /// Why.
        why: String,
    },
    /// It is lossless and has held the stream back for a while.
    ReaderBlocking {
        /// The reader.
        reader: ReaderInfo,
        /// For how long.
        blocked_for: Duration,
    },
    /// Readers can no longer connect: the socket, its lock file or its folder was removed or replaced, and no new one could
    /// be bound. The exporter tries again every few seconds.
    SocketLost {
        /// Why.
        why: String,
    },
    /// The kernel lets readers of other users write into shared memory through `/dev/udmabuf`, or may let them. Reported once,
    /// when the stream is opened, and only where other users may read.
    OthersCouldWrite {
        /// Readers of other users are refused. If not, the device could not be probed, and they are admitted.
        refused: bool,
        /// Why.
        why: String,
    },
    /// The socket was removed, and a new one is bound in its place. Readers can connect.
    SocketBound,
}
