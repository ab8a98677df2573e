// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statistics of a stream.

use frameshare::reader;
use pyo3::prelude::*;

/// Statistics of a stream over all its connections.
#[pyclass(frozen, eq, get_all, module = "frameshare")]
#[derive(Debug, PartialEq)]
pub struct Stats {
    /// The run of the stream that is read.
    session: u64,
    /// The exporter's process.
    exporter_pid: u32,
    /// Maximum number of frames that this process may hold; 0 while the exporter is searched.
    max_held: u32,
    /// Number of frames that it holds.
    held: u32,
    /// Frames taken.
    received: u64,
    /// Frames lost.
    lost: u64,
    /// Number of reconnections.
    reconnects: u64,
    /// Frames that came when they were written, since enough GPU streams of this process waited for
    /// others.
    gpu_wait_limited: u64,
}

impl Stats {
    /// The statistics of a reader.
    pub fn of(stats: reader::Stats) -> Self {
        let reader::Stats { session, exporter_pid, credit, held, received, lost, reconnects, .. } = stats;
        let (max_held, gpu_wait_limited) = (credit, stats.gpu_wait_limited);
        Self { session, exporter_pid, max_held, held, received, lost, reconnects, gpu_wait_limited }
    }
}

#[pymethods]
impl Stats {
    fn __repr__(&self) -> String {
        let Self { session, exporter_pid, max_held, held, received, lost, reconnects, gpu_wait_limited } =
            self;
        format!(
            "Stats(session={session}, exporter_pid={exporter_pid}, max_held={max_held}, held={held}, \
             received={received}, lost={lost}, reconnects={reconnects}, gpu_wait_limited={gpu_wait_limited})"
        )
    }
}
