// SPDX-License-Identifier: MIT OR Apache-2.0

//! A choice and its reason.

/// A selected kind, and the reason for it, for logs and statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selected<Kind> {
    /// The selected kind.
    pub kind: Kind,
    /// The reason.
    pub why: String,
}
