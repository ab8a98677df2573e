// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reason why a link ends.

use frameshare_protocol::message::Reason;

/// The reason why a link ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The reason, for programs.
    pub reason: Reason,
    /// The reason, for people.
    pub text: String,
}

impl Ending {
    /// An end for this reason.
    pub fn new(reason: Reason, text: impl Into<String>) -> Self {
        Self { reason, text: text.into() }
    }
}
