// SPDX-License-Identifier: MIT OR Apache-2.0

//! Requests and events for the exporter, from any thread.

use super::channel::Channel;
use crate::upstream::{UpstreamError, UpstreamEvent, UpstreamKinds};
use frameshare_protocol::message::ToExporter;
use std::sync::{Arc, Weak};

/// A handle for requests and events of the application: see
/// [`Reader::upstream`](crate::reader::Reader::upstream). The default one sends nothing, and
/// neither does one whose connection has ended.
#[derive(Clone, Debug, Default)]
pub struct UpstreamSender(Weak<Channel>);

impl UpstreamSender {
    pub(in crate::reader) fn new(channel: &Arc<Channel>) -> Self {
        Self(Arc::downgrade(channel))
    }

    /// Requests a key unit of an encoded stream, without waiting. The exporter passes requests on
    /// to the encoder at most once a second, for readers of its own user; it may ignore them.
    pub fn request_key_unit(&self) {
        if let Some(channel) = self.0.upgrade() {
            channel.send(&ToExporter::RequestKeyUnit);
        }
    }

    /// Returns the kinds of events that the exporter accepts from this reader.
    pub fn accepted(&self) -> UpstreamKinds {
        self.0.upgrade().map(|channel| channel.upstream()).unwrap_or_default()
    }

    /// Sends an event, without waiting.
    ///
    /// # Errors
    /// [`UpstreamError`] if it is not sent. An event that was sent may still be lost with the
    /// connection.
    pub fn send(&self, event: &UpstreamEvent) -> Result<(), UpstreamError> {
        let channel = self.0.upgrade().ok_or(UpstreamError::NotConnected)?;
        if !event.is_valid() {
            return Err(UpstreamError::Invalid);
        }
        if !channel.upstream().include(event) {
            return Err(UpstreamError::NotAccepted);
        }
        if !channel.may_send_upstream(event) {
            return Err(UpstreamError::TooMany);
        }
        channel.send(&ToExporter::Upstream(event.clone()));
        Ok(())
    }
}
