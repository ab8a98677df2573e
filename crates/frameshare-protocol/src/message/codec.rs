// SPDX-License-Identifier: MIT OR Apache-2.0

//! Encoding of messages as packets.

use crate::{VERSION, limits::MAX_MESSAGE};
use serde::{Serialize, de::DeserializeOwned};

const MAGIC: [u8; 4] = *b"fshr";
/// Length of the header in bytes.
pub(super) const HEADER: usize = 8;

/// A packet that cannot be decoded as a message of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The peer uses another version of the protocol.
    #[error("frameshare protocol version mismatch: received version {0}, expected {VERSION}")]
    Version(u16),
    /// The peer uses another protocol.
    #[error("peer does not use the frameshare protocol")]
    NotOurs,
    /// The packet is damaged or has invalid content.
    #[error("malformed message: {0}")]
    Malformed(Malformation),
}

/// The damaged or invalid part of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformation {
    /// A reserved byte of the header is set.
    #[error("reserved header bytes are not zero")]
    Header,
    /// The body is none of this version.
    #[error("cannot decode the message body")]
    Body,
    /// The packet is longer than its message.
    #[error("extra bytes after the message")]
    Length,
    /// A value of a `Hello` exceeds its limit.
    #[error("value out of range in Hello")]
    Hello,
    /// The credit of a `Welcome` is 0 or exceeds the limit.
    #[error("credit out of range")]
    Credit,
    /// The number of metadata areas of a `Welcome` is 0 or exceeds the limit.
    #[error("metadata areas out of range")]
    Areas,
    /// Event handles are missing, or more than the credit needs.
    #[error("number of event handles does not match the credit")]
    EventHandles,
    /// The slot size of a generation is 0 or exceeds the limit.
    #[error("slot size out of range")]
    SlotSize,
    /// Kept units are none or too many, or their size is impossible.
    #[error("number or size of kept units out of range")]
    KeptUnits,
    /// The name of an observer is too long.
    #[error("value out of range in Observe")]
    Observe,
    /// A snapshot is damaged, or has more entries than a stream.
    #[error("invalid snapshot")]
    Snapshot,
    /// A sealed payload is empty or exceeds the limit.
    #[error("payload too long")]
    Payload,
}

/// A message that exceeds the maximum size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of {0} bytes exceeds the limit of {MAX_MESSAGE} bytes")]
pub struct TooLong(pub usize);

/// Truncates a text of others to so many bytes, and makes it one printable line for logs, terminals
/// and labels: characters that are not printable ([`is_printable`]) become `?`.
pub fn make_printable(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
    if !text.chars().all(is_printable) {
        *text = text.replace(|c| !is_printable(c), "?");
    }
}

/// Returns whether a character is shown as itself. Others control a terminal, end a line, change
/// the order of the text around them, or are invisible.
pub fn is_printable(c: char) -> bool {
    let is_hidden = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}')
        || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
        || matches!(c, '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
    !c.is_control() && !is_hidden
}

/// Encodes a message behind the header.
pub(super) fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, TooLong> {
    let mut packet = Vec::with_capacity(256);
    packet.extend(MAGIC);
    packet.extend(VERSION.to_le_bytes());
    packet.extend([0, 0]);
    // Serializing plain data into a growing buffer cannot fail.
    let packet = postcard::to_extend(message, packet).unwrap_or_default();
    if packet.is_empty() || packet.len() > MAX_MESSAGE {
        return Err(TooLong(packet.len()));
    }
    Ok(packet)
}

/// Decodes a packet, without the checks of a message's values.
pub(super) fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<T, DecodeError> {
    let Some((header, body)) = packet.split_at_checked(HEADER) else {
        return Err(DecodeError::NotOurs);
    };
    if header[..4] != MAGIC {
        return Err(DecodeError::NotOurs);
    }
    let version = u16::from_le_bytes([header[4], header[5]]);
    if version != VERSION {
        return Err(DecodeError::Version(version));
    }
    if header[6..] != [0, 0] {
        return Err(DecodeError::Malformed(Malformation::Header));
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(DecodeError::Malformed(Malformation::Length)),
        Err(_) => Err(DecodeError::Malformed(Malformation::Body)),
    }
}
