// SPDX-License-Identifier: MIT OR Apache-2.0

//! Control messages from the exporter: reception, validation, payloads.

use crate::{
    reader::error::{ProtocolViolation, ReadError},
    sys::{self, Socket, UntrustedFd, read_memfd},
};
use frameshare_protocol::message::{Payload, ToReader};
use std::io;

/// The outcome of one reception.
#[derive(Debug)]
pub(super) enum Received {
    /// A message, and its descriptor.
    Message(ToReader, Option<UntrustedFd>),
    /// No message has arrived.
    Nothing,
    /// The exporter hung up.
    HungUp,
}

/// Receives a message, without waiting.
///
/// # Errors
/// [`ReadError::Violation`] for an invalid message, or one without its descriptor;
/// [`ReadError::Io`] for a failed system call.
pub(super) fn receive(socket: &Socket) -> Result<Received, ReadError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => ProtocolViolation::Packet(error).into(),
        _ => ReadError::Io(error),
    };
    let (packet, fds) = match socket.receive().map_err(failed)? {
        sys::Received::Packet(packet, fds) => (packet, fds),
        sys::Received::Nothing => return Ok(Received::Nothing),
        sys::Received::HungUp => return Ok(Received::HungUp),
    };
    let message = ToReader::decode(&packet).map_err(ProtocolViolation::Message)?;
    if !message.fds().contains(&fds.len()) {
        return Err(ProtocolViolation::DescriptorCount.into());
    }
    Ok(Received::Message(message, fds.into_iter().next()))
}

/// Reads a payload of at most `limit` bytes, inline or from a memory file.
///
/// # Errors
/// [`ReadError::TooMuchMetadata`] beyond the limit, and [`ReadError::Violation`] for an invalid
/// memory file.
pub(super) fn read_payload(
    payload: Payload,
    fd: Option<UntrustedFd>,
    limit: u64,
) -> Result<Vec<u8>, ReadError> {
    let size = match &payload {
        Payload::Inline(bytes) => bytes.len() as u64,
        Payload::Sealed(size) => *size,
    };
    if size > limit {
        return Err(ReadError::TooMuchMetadata { size, limit });
    }
    let bytes = match (payload, fd) {
        (Payload::Inline(bytes), _) => Ok(bytes),
        (Payload::Sealed(size), Some(fd)) => read_memfd(&fd, size),
        (Payload::Sealed(_), None) => return Err(ProtocolViolation::DescriptorCount.into()),
    };
    Ok(bytes.map_err(ProtocolViolation::Payload)?)
}
