// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reason why a link ends.

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
}
