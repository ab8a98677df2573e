// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reason why a link ends.

use crate::sys::{Drained, SENT_OVER_WAKE};
use frameshare_protocol::message::Reason;

/// The reason why a link ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    pub reason: Reason,
    pub text: String,
}

impl Ending {
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }

    /// The end of a link whose wake-up socket was drained with this outcome, if it is one.
    pub fn of_wake(drained: Drained) -> Option<Self> {
        match drained {
            Drained::Open => None,
            Drained::Closed => Some(Self::new(Reason::Stopped, "it hung up")),
            Drained::Descriptor => Some(Self::new(Reason::Violation, SENT_OVER_WAKE)),
        }
    }
}
