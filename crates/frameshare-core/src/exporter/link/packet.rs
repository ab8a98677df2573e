// SPDX-License-Identifier: MIT OR Apache-2.0

//! Encoded messages to readers.

use crate::exporter::{
    shortage::Unsendable,
    system::{Attachment, System},
};
use frameshare_protocol::{
    limits::MAX_MESSAGE,
    message::{Payload, ToReader, TooLong},
};
use std::sync::Arc;

/// Maximum size in bytes of a payload in its message: there is room for the header and the other
/// fields.
pub const INLINE: usize = MAX_MESSAGE - 1024;

/// An encoded message, shared by all its readers.
#[derive(Clone, Debug)]
pub struct Packet<A> {
    bytes: Arc<[u8]>,
    attachments: Vec<A>,
    /// Size in bytes of a payload in a file of its own.
    payload: u64,
    is_ordered: bool,
    /// The exporter keeps it for joining readers anyway.
    is_kept: bool,
}

impl<A: Attachment> Packet<A> {
    /// Encodes a message without a long payload.
    pub fn new(message: &ToReader) -> Result<Self, Unsendable> {
        Self::encode(message, Vec::new(), 0)
    }

    /// Encodes a message. A payload that is too long for one goes into a sealed memory file beside
    /// it: one that is used again if some reader `is_charged` for memory.
    pub fn with_payload(
        message: &ToReader,
        system: &impl System<Attachment = A>,
        is_charged: bool,
    ) -> Result<Self, Unsendable> {
        let bytes = match message {
            ToReader::Event { payload: Payload::Inline(bytes), .. }
            | ToReader::Metadata { payload: Payload::Inline(bytes), .. } => bytes.as_slice(),
            _ => &[],
        };
        if bytes.len() <= INLINE {
            return Self::new(message);
        }
        let (length, file) = (bytes.len() as u64, system.payload(bytes, is_charged)?);
        let message = with_payload(message, Payload::Sealed(length));
        Self::encode(&message, vec![file], length)
    }

    /// Encodes a message with the descriptors that belong to it.
    pub fn with(message: &ToReader, attachments: Vec<A>) -> Result<Self, Unsendable> {
        Self::encode(message, attachments, 0)
    }

    /// Encodes a message with the file of its payload of `payload` bytes.
    pub fn with_file(message: &ToReader, file: A, payload: u64) -> Result<Self, Unsendable> {
        Self::encode(message, vec![file], payload)
    }

    fn encode(message: &ToReader, attachments: Vec<A>, payload: u64) -> Result<Self, Unsendable> {
        let too_long = |error: TooLong| Unsendable { why: error.to_string(), is_exhausted: false };
        let bytes = message.encode().map_err(too_long)?;
        let is_ordered = message.is_ordered();
        Ok(Self { bytes: bytes.into(), attachments, payload, is_ordered, is_kept: false })
    }

    /// The payload in a file of its own, if it has one: its length and the file.
    pub fn sealed(&self) -> Option<(Payload, Vec<A>)> {
        (self.payload > 0).then(|| (Payload::Sealed(self.payload), self.attachments.clone()))
    }

    /// The file of its payload, if it has one.
    pub(super) fn payload_file(&self) -> Option<&A> {
        self.attachments.iter().find(|attachment| attachment.payload().is_some())
    }

    /// The encoded message.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The descriptors that belong to it.
    pub(super) fn attachments(&self) -> &[A] {
        &self.attachments
    }

    /// Takes the descriptors out.
    pub(super) fn into_attachments(self) -> Vec<A> {
        self.attachments
    }

    /// Bytes of its payload file, unless the exporter keeps that anyway.
    pub(super) fn payload(&self) -> u64 {
        if self.is_kept { 0 } else { self.payload }
    }

    /// Marks the message as one that the exporter keeps anyway: it does not count against the
    /// reader.
    pub fn kept(self) -> Self {
        Self { is_kept: true, ..self }
    }

    /// Returns whether it has a place among the frames.
    pub fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// The message, and the number of its descriptors.
    #[cfg(test)]
    pub fn decode(&self) -> (ToReader, usize) {
        (ToReader::decode(&self.bytes).unwrap(), self.attachments.len())
    }

    pub(super) fn cost(&self) -> u64 {
        if self.is_kept { 0 } else { self.bytes.len() as u64 + self.payload }
    }

    pub(super) fn files(&self) -> usize {
        if self.is_kept || self.payload == 0 { 0 } else { self.attachments.len() }
    }
}

fn with_payload(message: &ToReader, payload: Payload) -> ToReader {
    match message {
        &ToReader::Event { before, kind, sticky, .. } => ToReader::Event { before, kind, sticky, payload },
        &ToReader::Metadata { sequence, .. } => ToReader::Metadata { sequence, payload },
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{self, Fake, GPU_MEMORY, SOCKET, message, with_file};
    use frameshare_protocol::{Sequence, message::Reason};

    #[test]
    fn payload_file_counts_unless_the_exporter_keeps_it() {
        let plain = Packet::<fake::Attachment>::new(&message(1)).unwrap();
        let length = plain.bytes().len() as u64;
        let with_fds = Packet::with(&message(1), vec![GPU_MEMORY, SOCKET]).unwrap();
        for (packet, cost, payload, files) in [
            (plain, length, 0, 0),
            (with_fds, length, 0, 0),
            (with_file(1, 500), length + 500, 500, 1),
            (with_file(1, 500).kept(), 0, 0, 0),
        ] {
            assert_eq!(
                (packet.cost(), packet.payload(), packet.files()),
                (cost, payload, files),
                "{packet:?}"
            );
        }
    }

    #[test]
    fn payload_that_exceeds_a_message_goes_to_a_file() {
        let event = |payload| ToReader::Event { before: Sequence(4), kind: 9, sticky: true, payload };
        let metadata = |payload| ToReader::Metadata { sequence: Sequence(5), payload };
        let kinds: [&dyn Fn(Payload) -> ToReader; 2] = [&event, &metadata];
        for kind in kinds {
            for (length, is_sealed) in [(INLINE, false), (INLINE + 1, true)] {
                let message = kind(Payload::Inline(vec![7; length]));
                let packet = Packet::with_payload(&message, &Fake::default(), false).unwrap();
                let sealed = is_sealed.then_some(Payload::Sealed(length as u64));
                assert_eq!(packet.sealed().map(|(payload, _)| payload), sealed);
                assert_eq!((packet.payload_file().is_some(), packet.files() == 1), (is_sealed, is_sealed));
                let sent = sealed.map_or(message, kind);
                assert_eq!(ToReader::decode(packet.bytes()).unwrap(), sent);
            }
        }
        // A descriptor that is no payload file is not taken for one.
        let other = Packet::with(&message(1), vec![SOCKET]).unwrap();
        assert!(other.sealed().is_none() && other.payload_file().is_none());
        assert_eq!(other.attachments().len(), 1);
    }

    #[test]
    fn messages_between_frames_are_ordered() {
        assert!(Packet::<fake::Attachment>::new(&message(1)).unwrap().is_ordered());
        let goodbye = ToReader::Goodbye { reason: Reason::Stopped, text: String::new() };
        assert!(!Packet::<fake::Attachment>::new(&goodbye).unwrap().is_ordered());
    }
}
