// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests for key units, from any thread.

use super::channel::Channel;
use frameshare_protocol::message::ToExporter;
use std::sync::{Arc, Weak};

/// A handle for requests for key units: see
/// [`Reader::request_key_unit`](crate::reader::Reader::request_key_unit). The default one sends
/// nothing, and neither does one whose connection has ended.
#[derive(Clone, Debug, Default)]
pub struct KeyUnitRequests(Weak<Channel>);

impl KeyUnitRequests {
    pub(in crate::reader) fn new(channel: &Arc<Channel>) -> Self {
        Self(Arc::downgrade(channel))
    }

    /// Number of frames of the connection that the reader holds; 0 after its end.
    pub(in crate::reader) fn held(&self) -> u32 {
        self.0.upgrade().map_or(0, |channel| channel.held())
    }

    /// Sends a request, without waiting.
    pub fn send(&self) {
        if let Some(channel) = self.0.upgrade() {
            channel.send(&ToExporter::RequestKeyUnit);
        }
    }
}
