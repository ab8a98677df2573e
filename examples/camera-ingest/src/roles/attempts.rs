// SPDX-License-Identifier: MIT OR Apache-2.0

//! Attempts to receive or decode a stream, one after another.

use super::{Context, backoff::Backoff, status::Status};
use crate::report::Condition;
use std::time::{Duration, Instant};

const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(15);

/// Reports failed attempts, and waits between them.
pub struct Attempts<'a> {
    context: &'a Context<'a>,
    status: &'a Status,
    /// Part of the camera in the status.
    part: &'static str,
    backoff: Backoff,
}

impl<'a> Attempts<'a> {
    pub fn new(context: &'a Context<'a>, status: &'a Status, part: &'static str) -> Self {
        Self { context, status, part, backoff: Backoff::new(FIRST_DELAY, MAX_DELAY) }
    }

    /// Reports an attempt that worked since `begin` (none: never), and waits for the next one.
    /// Returns false if the role is stopped.
    pub fn failed(&mut self, error: &anyhow::Error, begin: Option<Instant>) -> bool {
        let delay = self.backoff.after(begin);
        let text = format!("{error:#}; next attempt in {:.1} s", delay.as_secs_f64());
        self.status.set(self.part, Condition::Failed, text);
        self.context.pause(delay)
    }
}
