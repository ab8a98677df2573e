// SPDX-License-Identifier: MIT OR Apache-2.0

//! Ends of runs.

use crate::failure::Failure;

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All tasks returned or were killed, or one called `task::stop`.
    Done,
    /// No task can go on, now or at a later time. Has a line for each that waits. The world decides
    /// whether that is a failure.
    Stuck(Vec<String>),
    /// The bound on steps was reached.
    TooLong,
    /// The state was seen before (see `Enumeration::cutting_seen_states`).
    Cut,
    /// A task panicked, or the world reports a failure.
    Failed(Failure),
}
