// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages from reader or observer to exporter.

use super::{
    codec::{self, DecodeError, Malformation, TooLong},
    content::Reason,
    handshake::Hello,
    observe::Observe,
};
use crate::{
    ids::SlotId,
    limits::{MAX_CREDIT, MAX_GPUS, MAX_PEER_NAME, MAX_TEXT},
};
use serde::{Deserialize, Serialize};

/// A message from reader or observer to exporter, without file descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToExporter {
    /// Asks the exporter to accept the reader.
    Hello(Hello),
    /// The reader has released its imports of a retired generation.
    Retired {
        /// The retired generation.
        generation: u32,
    },
    /// The reader cannot import a slot of this generation. It takes no frames of the generation;
    /// from now on it receives frames in other memory, if allowed.
    CannotImport {
        /// Generation of the slot.
        generation: u32,
        /// Human-readable reason.
        text: String,
    },
    /// Asks for a key unit of an encoded stream soon. The exporter may ignore it.
    RequestKeyUnit,
    /// Close message: the reader closes its connection.
    Goodbye {
        /// Reason for closing.
        reason: Reason,
        /// Human-readable reason.
        text: String,
    },
    /// Asks for snapshots, as the first message of an observer.
    Observe(Observe),
    /// An observer asks for a snapshot.
    RequestSnapshot {
        /// Number of the request, for the answer.
        request: u32,
    },
    /// An observer of the exporter's user, or root's, asks to disconnect a reader.
    Disconnect {
        /// Number of the reader.
        reader: u64,
    },
    /// The reader copies frames of the present format, since its application does not support
    /// their layout. The exporter may publish them in the format's default layout.
    CopiesForLayout,
    /// The reader has released its import of a retired slot.
    RetiredSlot {
        /// The retired slot.
        slot: SlotId,
    },
}

impl ToExporter {
    /// Encodes the message as a packet.
    ///
    /// # Errors
    /// [`TooLong`] if the packet would exceed [`MAX_MESSAGE`](crate::limits::MAX_MESSAGE).
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        codec::encode(self)
    }

    /// Decodes and validates a packet from a reader.
    ///
    /// # Errors
    /// [`DecodeError`] for another protocol or version, and for malformed or out-of-range content.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let mut message: Self = codec::decode(packet)?;
        if let Self::Goodbye { text, .. } | Self::CannotImport { text, .. } = &mut message {
            codec::make_printable(text, MAX_TEXT);
        }
        if let Self::Observe(observe) = &mut message {
            codec::make_printable(&mut observe.name, usize::MAX);
            if observe.name.len() > MAX_PEER_NAME {
                return Err(DecodeError::Malformed(Malformation::Observe));
            }
        }
        if let Self::Hello(hello) = &mut message {
            codec::make_printable(&mut hello.name, usize::MAX);
            let fine = hello.name.len() <= MAX_PEER_NAME
                && hello.credit <= MAX_CREDIT
                && hello.max_queued <= MAX_CREDIT
                && hello.gpus.len() <= MAX_GPUS
                && hello.memory.len() <= 8
                && hello.fences.len() <= 8;
            if !fine {
                return Err(DecodeError::Malformed(Malformation::Hello));
            }
        }
        Ok(message)
    }
}
