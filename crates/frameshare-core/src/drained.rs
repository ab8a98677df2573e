// SPDX-License-Identifier: MIT OR Apache-2.0

//! The state of a wake-up socket after it was drained.

/// The state of a wake-up socket after all wake-ups in it were received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the peer may have closed its end"]
pub enum Drained {
    /// Further wake-ups can arrive.
    Open,
    /// The peer has closed its end, or half of it.
    Closed,
    /// The peer sent a descriptor, which breaks the protocol.
    Descriptor,
}

/// The reason of ending a connection whose peer sent a descriptor over its wake-up socket.
pub const SENT_OVER_WAKE: &str = "it sent file descriptors over its wake socket";
