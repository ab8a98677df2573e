// SPDX-License-Identifier: MIT OR Apache-2.0

//! Numbers and limits of the streams.

use std::time::Duration;

/// Number of frames of one size, and their interval.
pub const RENEW: u64 = 25;
pub const PACE_US: u64 = 20_000;
/// An operation that takes longer counts as hanging.
pub const LIMIT: Duration = Duration::from_secs(60);
/// Longer than the limit of the case, so that no peer times out before the case reports which
/// operation hangs.
pub const PATIENCE_MS: u64 = 2 * LIMIT.as_millis() as u64;
