// SPDX-License-Identifier: MIT OR Apache-2.0

//! The reason why a message cannot be made.

use std::fmt;

/// The reason why a message cannot be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsendable {
    /// The reason, for people.
    pub why: String,
    /// Files or memory have run out, possibly because of unreceived messages.
    pub is_exhausted: bool,
}

impl fmt::Display for Unsendable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}
