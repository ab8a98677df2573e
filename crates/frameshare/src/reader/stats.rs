// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statistics of a reader.

/// Statistics of a reader over all its connections.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The run of the stream that it reads.
    pub session: u64,
    /// The exporter's process.
    pub exporter_pid: u32,
    /// Maximum number of frames that it may hold.
    pub credit: u32,
    /// Number of frames that it holds.
    pub held: u32,
    /// Frames taken.
    pub received: u64,
    /// Frames lost.
    pub lost: u64,
    /// Number of reconnections.
    pub reconnects: u64,
}
