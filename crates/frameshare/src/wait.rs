// SPDX-License-Identifier: MIT OR Apache-2.0

//! Limits of the waits of an exporter's calls.

use crate::sys::Timeout;
use std::time::{Duration, Instant};

/// The time that a call may wait for other processes, before it returns an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// Not at all.
    No,
    /// At most this long.
    For(Duration),
    /// Until this time.
    Until(Instant),
    /// Without a limit of the caller's.
    Forever,
}

impl From<Wait> for Timeout {
    fn from(wait: Wait) -> Self {
        match wait {
            Wait::No => Self::after(Some(Duration::ZERO)),
            Wait::For(time) => Self::after(Some(time)),
            Wait::Until(time) => Self::At(time),
            Wait::Forever => Self::Never,
        }
    }
}
