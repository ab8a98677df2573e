// SPDX-License-Identifier: MIT OR Apache-2.0

//! The process and the user of a reader.

/// The process and the user of a reader, as the kernel reports them, and what the owner of the
/// stream has configured for that user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The process; 0 if the kernel cannot tell it.
    pub pid: u32,
    /// The user.
    pub uid: u32,
    /// It runs as the exporter's user.
    pub is_own: bool,
    /// It runs as the exporter's user, or as root.
    pub is_own_or_root: bool,
    /// It is in the exporter's process.
    pub is_in_this_process: bool,
    /// It is trusted with memory: it gets kept units, and its user is not charged.
    pub is_trusted: bool,
    /// It may have memory of a GPU, which no kind of it keeps from being written.
    pub may_have_gpu_memory: bool,
    /// Frames may wait for it in a backlog.
    pub may_queue: bool,
}
