// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statistics of a reader.

use super::wait::Spun;
use frameshare_core::reader::ConnectionStats;
use std::time::Duration;

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
    /// Number of sleeps on the futex that the readers of one user share. The others are on
    /// sockets: those of readers that poll a descriptor, of kernels before Linux 5.16, and those
    /// without a frame for 90 ms.
    pub futex_sleeps: u64,
    /// Wake-ups of that futex that did not arrive within 90 ms: another process of this user
    /// takes them. After three of 10,000 a connection uses its socket only.
    pub missed_wakes: u64,
    /// Time spent spinning for items ([`Config::spin`](super::Config::spin)).
    pub spin_time: Duration,
    /// Frames that arrived during a spin. For these the exporter sent no wake-up.
    pub spin_frames: u64,
    /// Frames that were delivered when they were written, since as many GPU streams of this process
    /// as frameshare allows were waiting for frames of its readers, or GPU memory was to be freed.
    pub gpu_wait_limited: u64,
}

impl Stats {
    /// The statistics of all connections, and the cost of the reader's spins.
    pub(super) fn new(connections: ConnectionStats, spun: Spun) -> Self {
        Self {
            session: connections.session,
            exporter_pid: connections.exporter_pid,
            credit: connections.credit,
            held: connections.held,
            received: connections.received,
            lost: connections.lost,
            reconnects: connections.reconnects,
            futex_sleeps: connections.futex_sleeps,
            missed_wakes: connections.missed_wakes,
            spin_time: spun.time,
            spin_frames: spun.frames,
            gpu_wait_limited: connections.gpu_wait_limited,
        }
    }
}
