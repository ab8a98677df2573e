// SPDX-License-Identifier: MIT OR Apache-2.0

//! Items of a stream, as a reader yields them.

use super::lease::Frame;
use crate::event::Event;
use frameshare_protocol::message::Format;
use std::sync::Arc;

/// The next item of a stream, in order.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every item is a frame, and an allocation a frame costs more"
)]
pub enum Item {
    /// The format of the following frames.
    Format(Arc<Format>),
    /// An in-band event.
    Event(Event),
    /// A frame.
    Frame(Frame),
    /// The stream has ended; it may continue later.
    EndOfStream,
    /// The next exporter was found after the end of the last, or the first one of
    /// [`Reader::start`](super::Reader::start): sequence numbers start again, and the format
    /// follows again.
    Reconnected,
}
