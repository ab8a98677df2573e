// SPDX-License-Identifier: MIT OR Apache-2.0

//! Upstream events of one reader: permission, limit, count.

use super::Ending;
use crate::upstream::{ReceivingLimit, UpstreamEvent, UpstreamKinds};
use frameshare_protocol::message::Reason;
use std::time::Instant;

/// The upstream events of one reader.
#[derive(Debug, Default)]
pub struct Upstream {
    accepted: UpstreamKinds,
    limit: ReceivingLimit,
    /// Events that were taken.
    pub taken: u64,
    /// Events that exceeded the limit.
    pub dropped: u64,
}

impl Upstream {
    /// Accepts events of some kinds.
    pub fn new(accepted: UpstreamKinds) -> Self {
        Self { accepted, ..Self::default() }
    }

    /// Counts an event. Returns false if it exceeds the limit.
    ///
    /// # Errors
    /// The end of the reader, which knows that events of this kind are not accepted.
    pub fn take(&mut self, event: &UpstreamEvent) -> Result<bool, Ending> {
        if !self.accepted.include(event) {
            return Err(Ending::new(Reason::Violation, "it sent an upstream event that is not accepted"));
        }
        let is_taken = self.limit.admit(event, Instant::now());
        *if is_taken { &mut self.taken } else { &mut self.dropped } += 1;
        Ok(is_taken)
    }
}
