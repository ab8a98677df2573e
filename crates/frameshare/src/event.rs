// SPDX-License-Identifier: MIT OR Apache-2.0

//! In-band events, delivered in order with frames.

/// An event with its place among the frames, opaque to the engine: tags, segments, gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its kind, defined by the sender.
    pub kind: u32,
    /// A joining reader gets the newest sticky event of each kind.
    pub sticky: bool,
    /// Its content.
    pub payload: Vec<u8>,
}

impl Event {
    /// The kind of the event that starts a stream. A joining reader gets the sticky event of this
    /// kind before the format, and those of all other kinds after it.
    pub const STREAM_START: u32 = 0;
}
