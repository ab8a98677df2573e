// SPDX-License-Identifier: MIT OR Apache-2.0

//! Control messages and their encoding as socket packets.
//!
//! A packet is an 8-byte header (magic `fshr`, the version as a little-endian `u16`, two zero
//! bytes) followed by one message in [postcard](https://postcard.jamesmunns.com/wire-format)
//! encoding. File descriptors are sent with a packet from exporter to reader only;
//! [`ToReader::fds`] returns the number for each message.

use crate::{
    VERSION,
    kind::{FenceKind, MemoryKind, Policy},
    limits::{
        MAX_CREDIT, MAX_GPUS, MAX_MESSAGE, MAX_PAYLOAD, MAX_PEER_NAME, MAX_SLOT_SIZE, MAX_SLOTS, MAX_TEXT,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

const MAGIC: [u8; 4] = *b"fshr";
const HEADER: usize = 8;

/// A random number drawn once per process: two peers with equal nonces are the same process.
pub type Nonce = [u8; 16];
/// Size in bytes of a CUDA IPC event handle (`CUipcEventHandle`).
pub const EVENT_HANDLE: usize = 64;
/// UUID of a GPU or MIG instance (`cuDeviceGetUuid_v2`).
pub type GpuUuid = [u8; 16];

/// First message, from reader to exporter: the reader's request and capabilities.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// Nonce of the reader's process.
    pub nonce: Nonce,
    /// Name of the reader in the exporter's statistics.
    pub name: String,
    /// Requested delivery policy.
    pub policy: Policy,
    /// Requested number of simultaneous leases.
    pub credit: u32,
    /// Memory kinds that the reader can import.
    pub memory: Vec<MemoryKind>,
    /// Fence kinds that the reader supports.
    pub fences: Vec<FenceKind>,
    /// GPUs whose memory the reader's context can read.
    pub gpus: Vec<GpuUuid>,
    /// Identifies the reader's CUDA context within its process; 0 without a context.
    pub context: u64,
    /// Whether the reader accepts frames in host memory if it cannot read the GPU memory.
    pub host_fallback: bool,
}

/// The exporter's answer to a [`Hello`]. Carries four descriptors: queue page, claims page,
/// metadata areas, wake-up socket. With timeline fences a fifth follows: the timeline page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Nonce of the exporter's process.
    pub nonce: Nonce,
    /// Identifies this run of the stream; earlier and later runs under the same name differ.
    pub session: u64,
    /// The granted policy, equal to the requested one.
    pub policy: Policy,
    /// Number of simultaneous leases granted, at most as requested; also the number of queue
    /// entries.
    pub credit: u32,
    /// Fence kind of the connection.
    pub fence: FenceKind,
    /// With event fences, the event handles: the ready event of each entry, then the release event
    /// of each.
    pub events: Vec<u8>,
    /// GPU of the frames, if they are in GPU memory.
    pub gpu: Option<GpuUuid>,
    /// Number of metadata areas.
    pub areas: u32,
    /// Sequence number of the next frame to be published.
    pub next: u64,
}

/// Reason for rejecting a reader or closing a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The peer stopped normally.
    Stopped,
    /// The reader is not allowed to read this stream.
    PermissionDenied,
    /// All credit is granted to other readers.
    NoCreditLeft,
    /// The exporter does not grant this reader the `lossless` policy.
    LosslessNotGranted,
    /// Exporter and reader have no memory kind or fence kind in common.
    NothingInCommon,
    /// The reader blocked a lossless stream for longer than the exporter allows.
    TooSlow,
    /// The reader exceeded a limit of resources or time.
    LimitExceeded,
    /// The peer violated the protocol.
    Violation,
    /// The peer failed and cannot continue.
    Failed,
}

/// A caps string, and for raw video its format and size, so that applications need not parse the
/// caps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// GStreamer caps as text.
    pub caps: String,
    /// Set for raw video only.
    pub video: Option<Video>,
}

/// Format and size of raw video frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Video {
    /// Pixel format, as named by GStreamer, e.g. `NV12`.
    pub format: String,
    /// Width in pixels.
    pub width: u32,
    /// Height in rows.
    pub height: u32,
}

/// Payload bytes, in the message or, if too large, in a sealed memfd sent with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// The bytes.
    Inline(Vec<u8>),
    /// Size of the memfd in bytes.
    Sealed(u64),
}

/// A message from exporter to reader.
///
/// A field `before` is the sequence number of the first frame after the message. A reader applies
/// all messages up to *n* before it takes frame *n*.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToReader {
    /// The reader is accepted.
    Welcome(Welcome),
    /// The reader is rejected.
    Refused {
        /// Reason of the rejection.
        reason: Reason,
        /// Human-readable reason.
        text: String,
    },
    /// The exporter starts to use a GPU that it did not use when the reader joined. Carries the
    /// timeline page if `fence` is timeline.
    Gpu {
        /// GPU of the frames.
        gpu: GpuUuid,
        /// Fence kind for these frames.
        fence: FenceKind,
        /// With event fences, the event handles, as in [`Welcome`].
        events: Vec<u8>,
    },
    /// A new generation of slots. Carries a descriptor if the memory kind has one for all slots.
    Generation {
        /// Number of the generation.
        generation: u32,
        /// Memory kind of its slots.
        memory: MemoryKind,
        /// Size of each slot in bytes.
        slot_size: u64,
        /// Whether the slots are memory of a third party, such as a decoder, shared in place.
        adopted: bool,
    },
    /// A slot of a generation, to be imported. Carries a descriptor if the memory kind has one per
    /// slot.
    Slot {
        /// Generation of the slot.
        generation: u32,
        /// Number of the slot in its generation.
        slot: u32,
        /// Data that an import of this memory kind needs in addition to a descriptor.
        handle: Vec<u8>,
    },
    /// From frame `before` on, no frame uses this generation. The reader must release its imports
    /// and acknowledge with [`ToExporter::Retired`].
    Retire {
        /// Sequence number of the first frame after the message.
        before: u64,
        /// The retired generation.
        generation: u32,
    },
    /// The format of the frames from `before` on.
    Format {
        /// Sequence number of the first frame after the message.
        before: u64,
        /// Memory kind in which this reader receives the frames.
        memory: MemoryKind,
        /// The format.
        format: Format,
    },
    /// An event in order with the frames, defined by the publisher.
    Event {
        /// Sequence number of the first frame after the message.
        before: u64,
        /// Kind of event.
        kind: u32,
        /// Content of the event; a sealed payload carries a descriptor.
        payload: Payload,
    },
    /// Metadata of frame `sequence` that is too large for the frame's metadata area.
    Metadata {
        /// Sequence number of the frame.
        sequence: u64,
        /// The metadata; a sealed payload carries a descriptor.
        payload: Payload,
    },
    /// End of the stream. The stream may resume later.
    EndOfStream {
        /// Sequence number of the first frame after the message, if there is one.
        before: u64,
    },
    /// Close message: the exporter closes this connection.
    Goodbye {
        /// Reason for closing.
        reason: Reason,
        /// Human-readable reason.
        text: String,
    },
}

/// A message from reader to exporter, without file descriptors.
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
    /// Close message: the reader closes its connection.
    Goodbye {
        /// Reason for closing.
        reason: Reason,
        /// Human-readable reason.
        text: String,
    },
}

/// A packet that cannot be decoded as a message of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The peer uses another version of the protocol.
    #[error("frameshare protocol version mismatch: received version {0}, expected {VERSION}")]
    Version(u16),
    /// The peer uses another protocol.
    #[error("peer does not use the frameshare protocol")]
    NotOurs,
    /// The packet is damaged or has invalid content.
    #[error("malformed message: {0}")]
    Malformed(&'static str),
}

/// A message that exceeds the maximum size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of {0} bytes exceeds the limit of {MAX_MESSAGE} bytes")]
pub struct TooLong(pub usize);

impl ToReader {
    /// Returns the number of file descriptors sent with the message.
    pub fn fds(&self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Welcome(welcome) if welcome.fence == FenceKind::Timeline => 5..=5,
            Self::Welcome(_) => 4..=4,
            Self::Gpu { fence: FenceKind::Timeline, .. } => 1..=1,
            Self::Generation { .. } | Self::Slot { .. } => 0..=1,
            Self::Event { payload: Payload::Sealed(_), .. }
            | Self::Metadata { payload: Payload::Sealed(_), .. } => 1..=1,
            _ => 0..=0,
        }
    }

    /// Returns whether [`Descriptor::messages`](crate::Descriptor::messages) counts this message.
    pub fn is_ordered(&self) -> bool {
        !matches!(self, Self::Welcome(_) | Self::Refused { .. } | Self::Goodbye { .. })
    }

    /// Encodes the message as a packet.
    ///
    /// # Errors
    /// [`TooLong`] if the packet would exceed [`MAX_MESSAGE`].
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        encode(self)
    }

    /// Decodes and validates a packet from an exporter.
    ///
    /// # Errors
    /// [`DecodeError`] for another protocol or version, and for malformed or out-of-range content.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let mut message: Self = decode(packet)?;
        if let Self::Refused { text, .. } | Self::Goodbye { text, .. } = &mut message {
            make_printable(text, MAX_TEXT);
        }
        let check = |fine: bool, what| if fine { Ok(()) } else { Err(DecodeError::Malformed(what)) };
        match &message {
            Self::Welcome(welcome) => {
                check((1..=MAX_CREDIT).contains(&welcome.credit), "credit out of range")?;
                check((1..=MAX_SLOTS).contains(&welcome.areas), "metadata areas out of range")?;
                let events = if welcome.fence == FenceKind::Event { 2 * welcome.credit as usize } else { 0 };
                check(
                    welcome.events.len() == events * EVENT_HANDLE,
                    "number of event handles does not match the credit",
                )?;
            }
            Self::Gpu { events, .. } => check(
                events.len().is_multiple_of(2 * EVENT_HANDLE)
                    && events.len() <= 2 * EVENT_HANDLE * MAX_CREDIT as usize,
                "number of event handles does not match any credit",
            )?,
            Self::Generation { slot_size, .. } => {
                check((1..=MAX_SLOT_SIZE).contains(slot_size), "slot size out of range")?;
            }
            Self::Slot { slot, .. } => check(*slot < MAX_SLOTS, "slot out of range")?,
            Self::Event { payload: Payload::Sealed(size), .. }
            | Self::Metadata { payload: Payload::Sealed(size), .. } => {
                check((1..=MAX_PAYLOAD).contains(size), "payload too long")?;
            }
            _ => {}
        }
        Ok(message)
    }
}

impl ToExporter {
    /// Encodes the message as a packet.
    ///
    /// # Errors
    /// [`TooLong`] if the packet would exceed [`MAX_MESSAGE`].
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        encode(self)
    }

    /// Decodes and validates a packet from a reader.
    ///
    /// # Errors
    /// [`DecodeError`] for another protocol or version, and for malformed or out-of-range content.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let mut message: Self = decode(packet)?;
        if let Self::Goodbye { text, .. } | Self::CannotImport { text, .. } = &mut message {
            make_printable(text, MAX_TEXT);
        }
        if let Self::Hello(hello) = &mut message {
            make_printable(&mut hello.name, usize::MAX);
            let fine = hello.name.len() <= MAX_PEER_NAME
                && (1..=MAX_CREDIT).contains(&hello.credit)
                && hello.gpus.len() <= MAX_GPUS
                && hello.memory.len() <= 8
                && hello.fences.len() <= 8;
            if !fine {
                return Err(DecodeError::Malformed("value out of range in Hello"));
            }
        }
        Ok(message)
    }
}

/// Truncates a peer's text and replaces control characters, since it is printed to logs and
/// terminals.
fn make_printable(text: &mut String, most: usize) {
    text.truncate(text.floor_char_boundary(most));
    if text.contains(char::is_control) {
        *text = text.replace(char::is_control, "?");
    }
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, TooLong> {
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

fn decode<T: DeserializeOwned>(packet: &[u8]) -> Result<T, DecodeError> {
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
        return Err(DecodeError::Malformed("reserved header bytes are not zero"));
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(DecodeError::Malformed("extra bytes after the message")),
        Err(_) => Err(DecodeError::Malformed("cannot decode the message body")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello() -> Hello {
        Hello {
            nonce: [7; 16],
            name: "test".into(),
            policy: Policy::Lossless,
            credit: 4,
            memory: vec![MemoryKind::Host],
            fences: vec![FenceKind::None],
            gpus: vec![[1; 16]],
            context: 1,
            host_fallback: true,
        }
    }

    #[test]
    fn message_round_trip_is_lossless() {
        let format = Format {
            caps: "video/x-raw, format=NV12".into(),
            video: Some(Video { format: "NV12".into(), width: 1920, height: 1080 }),
        };
        for message in [
            ToReader::Gpu { gpu: [3; 16], fence: FenceKind::Event, events: vec![1; 2 * EVENT_HANDLE] },
            ToReader::Generation {
                generation: 1,
                memory: MemoryKind::Vmm,
                slot_size: 1 << 21,
                adopted: true,
            },
            ToReader::Slot { generation: 1, slot: 3, handle: vec![9; 64] },
            ToReader::Retire { before: 9, generation: 1 },
            ToReader::Format { before: 9, memory: MemoryKind::Vmm, format },
            ToReader::Event { before: 9, kind: 2, payload: Payload::Sealed(100_000) },
            ToReader::Metadata { sequence: 9, payload: Payload::Inline(vec![1, 2, 3]) },
            ToReader::EndOfStream { before: 10 },
            ToReader::Goodbye { reason: Reason::TooSlow, text: "too slow".into() },
        ] {
            assert_eq!(ToReader::decode(&message.encode().unwrap()), Ok(message));
        }
        let refusal = ToExporter::CannotImport { generation: 7, text: "invalid handle".into() };
        for message in [ToExporter::Hello(hello()), refusal] {
            assert_eq!(ToExporter::decode(&message.encode().unwrap()), Ok(message));
        }
    }

    #[test]
    fn other_version_and_protocol_are_distinguished() {
        let mut packet = ToExporter::Hello(hello()).encode().unwrap();
        packet[4] = 9;
        assert_eq!(ToExporter::decode(&packet), Err(DecodeError::Version(9)));
        assert_eq!(ToExporter::decode(b"GET / HTTP/1.1"), Err(DecodeError::NotOurs));
        assert_eq!(ToExporter::decode(b""), Err(DecodeError::NotOurs));
    }

    #[test]
    fn invalid_values_and_packets_are_rejected() {
        for absurd in [
            Hello { credit: 0, ..hello() },
            Hello { credit: MAX_CREDIT + 1, ..hello() },
            Hello { name: "x".repeat(MAX_PEER_NAME + 1), ..hello() },
            Hello { gpus: vec![[0; 16]; MAX_GPUS + 1], ..hello() },
        ] {
            let packet = ToExporter::Hello(absurd).encode().unwrap();
            assert!(matches!(ToExporter::decode(&packet), Err(DecodeError::Malformed(_))));
        }
        let packet = ToExporter::Hello(hello()).encode().unwrap();
        for length in HEADER..packet.len() {
            assert!(
                matches!(ToExporter::decode(&packet[..length]), Err(DecodeError::Malformed(_))),
                "{length}"
            );
        }
        let longer = [packet, vec![0]].concat();
        assert_eq!(ToExporter::decode(&longer), Err(DecodeError::Malformed("extra bytes after the message")));
    }

    #[test]
    fn peer_text_is_truncated_to_one_printable_line() {
        let text = format!("gone\n\x1b[2Jroot: all is well {}", "é".repeat(2 * MAX_TEXT));
        let goodbye = ToExporter::Goodbye { reason: Reason::Stopped, text: text.clone() };
        let refused = ToReader::Refused { reason: Reason::Stopped, text };
        let Ok(ToExporter::Goodbye { text, .. }) = ToExporter::decode(&goodbye.encode().unwrap()) else {
            panic!("expected a Goodbye message");
        };
        assert!(
            text.starts_with("gone??[2Jroot") && text.len() <= MAX_TEXT && !text.contains(char::is_control)
        );
        let packet = refused.encode().unwrap();
        assert!(
            matches!(ToReader::decode(&packet), Ok(ToReader::Refused { text: same, .. }) if same == text)
        );
        let packet = ToExporter::Hello(Hello { name: "a\nb".into(), ..hello() }).encode().unwrap();
        assert!(matches!(ToExporter::decode(&packet), Ok(ToExporter::Hello(hello)) if hello.name == "a?b"));
    }

    #[test]
    fn message_over_size_limit_is_not_encoded() {
        let message = ToReader::Event { before: 1, kind: 0, payload: Payload::Inline(vec![0; MAX_MESSAGE]) };
        assert!(message.encode().is_err());
    }
}
