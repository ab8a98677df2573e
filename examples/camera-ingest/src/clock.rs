// SPDX-License-Identifier: MIT OR Apache-2.0

//! The clock of capture times, events and files: time since 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Name of the clock in the caps of GstReferenceTimestampMeta, whose times are in ns.
pub const CLOCK: &str = "timestamp/x-unix";

/// Returns the time since 1970.
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the time since 1970 in ns.
pub fn ns_since_1970() -> u64 {
    u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX)
}
