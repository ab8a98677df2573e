//! Control messages, and how they become the packets of the socket.
//!
//! A packet is an 8-byte header (magic `fshr`, the version as a little-endian `u16`, two zero bytes) and one
//! message in [postcard](https://postcard.jamesmunns.com/wire-format) encoding. File descriptors travel beside
//! it, from exporter to reader only; [`ToReader::fds`] says how many belong to which message.

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

/// A random number that a process draws once: equal nonces mean one and the same process.
pub type Nonce = [u8; 16];
/// Bytes of the handle of a CUDA event (`CUipcEventHandle`).
pub const EVENT_HANDLE: usize = 64;
/// The UUID of a GPU, or of a MIG instance (`cuDeviceGetUuid_v2`).
pub type GpuUuid = [u8; 16];

/// The first message, from reader to exporter: who asks, for what, and what the reader can do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The reader's process.
    pub nonce: Nonce,
    /// What the reader calls itself, for the exporter's statistics.
    pub name: String,
    /// What is to happen to frames that the reader has no credit for.
    pub policy: Policy,
    /// How many leases it would like to hold at once.
    pub credit: u32,
    /// The kinds of memory that it can import.
    pub memory: Vec<MemoryKind>,
    /// The kinds of fence that it can take part in.
    pub fences: Vec<FenceKind>,
    /// The GPUs whose memory its context can read.
    pub gpus: Vec<GpuUuid>,
    /// Its CUDA context, by a number that tells it from others of the process; 0 without one.
    pub context: u64,
    /// It wants frames in host memory where it cannot read the GPU's.
    pub host_fallback: bool,
}

/// The exporter's answer to a [`Hello`], with four descriptors: queue page, claims page, metadata areas, wake socket;
/// and a fifth with timeline fences: the timeline page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The exporter's process.
    pub nonce: Nonce,
    /// A number that tells this run of the stream from an earlier or later one of the same name.
    pub session: u64,
    /// The policy granted: the one asked for.
    pub policy: Policy,
    /// How many leases the reader may hold at once, at most what it asked for; also the entries of its queue.
    pub credit: u32,
    /// The kind of fence that the two use.
    pub fence: FenceKind,
    /// With event fences, the handles of the events: the ready event of each entry, then the release event of each.
    pub events: Vec<u8>,
    /// The GPU that the frames lie on, if they lie on one.
    pub gpu: Option<GpuUuid>,
    /// How many metadata areas there are.
    pub areas: u32,
    /// The sequence number that the next publication will have.
    pub next: u64,
}

/// Why an exporter refuses a reader or ends its connection, or a reader its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The peer stops in good order.
    Stopped,
    /// The reader may not read this stream.
    PermissionDenied,
    /// All credit is given to other readers.
    NoCreditLeft,
    /// The exporter does not let this reader hold the stream back.
    LosslessNotGranted,
    /// The two have no kind of memory or fence in common.
    NothingInCommon,
    /// The reader held a lossless stream back for longer than the exporter allows.
    TooSlow,
    /// The reader took more or longer than it may.
    LimitExceeded,
    /// The peer broke the rules of the protocol.
    Violation,
    /// The peer has an error of its own and cannot go on.
    Failed,
}

/// A caps string and, for raw video, what an app needs without parsing it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Format {
    /// GStreamer caps as text.
    pub caps: String,
    /// Set for raw video.
    pub video: Option<Video>,
}

/// The shape of raw video frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Video {
    /// The pixel format as GStreamer writes it, e.g. `NV12`.
    pub format: String,
    /// Pixels a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// Bytes inside the message, or in a sealed memfd beside it where they are many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Payload {
    /// The bytes.
    Inline(Vec<u8>),
    /// How many bytes the memfd holds.
    Sealed(u64),
}

/// A message from exporter to reader.
///
/// Where there is a `before`, it is the sequence number of the first frame after the message; a reader applies
/// all messages up to *n* before it takes frame *n*.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToReader {
    /// The reader is admitted.
    Welcome(Welcome),
    /// The reader is not admitted.
    Refused {
        /// Why.
        reason: Reason,
        /// Why, for a person to read.
        text: String,
    },
    /// The exporter uses a GPU from now on, which it did not when the reader joined; with the timeline page where `fence` is
    /// timeline.
    Gpu {
        /// The GPU that frames lie on.
        gpu: GpuUuid,
        /// The kind of fence that the two use for them.
        fence: FenceKind,
        /// With event fences, the handles of the events, as in [`Welcome`].
        events: Vec<u8>,
    },
    /// A new generation of slots; with a descriptor where the kind of memory has one for all slots.
    Generation {
        /// Its number.
        generation: u32,
        /// The kind of its memory.
        memory: MemoryKind,
        /// Bytes of each slot.
        slot_size: u64,
        /// The slots are memory of a third party, such as a decoder, which the exporter shares in place.
        adopted: bool,
    },
    /// A slot of a generation, to be imported; with a descriptor where the kind of memory has one.
    Slot {
        /// The generation.
        generation: u32,
        /// The slot's number in it.
        slot: u32,
        /// What the kind of memory needs besides a descriptor.
        handle: Vec<u8>,
    },
    /// No frame from `before` on lies in this generation: its imports are to be given up and acknowledged.
    Retire {
        /// The sequence number of the first frame after the message.
        before: u64,
        /// The generation.
        generation: u32,
    },
    /// The frames from `before` on have this format.
    Format {
        /// The sequence number of the first frame after the message.
        before: u64,
        /// The kind of memory in which this reader gets the frames.
        memory: MemoryKind,
        /// The format.
        format: Format,
    },
    /// Something that has its place among the frames, in the words of whoever publishes it.
    Event {
        /// The sequence number of the first frame after the message.
        before: u64,
        /// What it is.
        kind: u32,
        /// Its content; a descriptor where it is sealed.
        payload: Payload,
    },
    /// The metadata of frame `sequence`, which did not fit beside it.
    Metadata {
        /// The frame.
        sequence: u64,
        /// The metadata; a descriptor where it is sealed.
        payload: Payload,
    },
    /// The stream has ended; it may go on later.
    EndOfStream {
        /// The sequence number of the first frame after the message, if one comes.
        before: u64,
    },
    /// The exporter ends this connection.
    Goodbye {
        /// Why.
        reason: Reason,
        /// Why, for a person to read.
        text: String,
    },
}

/// A message from reader to exporter. None carries file descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToExporter {
    /// The reader asks to be admitted.
    Hello(Hello),
    /// The reader has given up its imports of a retired generation.
    Retired {
        /// The generation.
        generation: u32,
    },
    /// The reader cannot import a slot of this generation. It takes no frame of the generation and gets frames elsewhere from
    /// now on, if it may.
    CannotImport {
        /// The generation.
        generation: u32,
        /// Why, for a person to read.
        text: String,
    },
    /// The reader ends its connection.
    Goodbye {
        /// Why.
        reason: Reason,
        /// Why, for a person to read.
        text: String,
    },
}

/// A packet that is no message of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The peer speaks the protocol in another version.
    #[error("the other side speaks version {0} of the frameshare protocol, this side version {VERSION}")]
    Version(u16),
    /// The peer speaks another protocol altogether.
    #[error("the other side does not speak the frameshare protocol")]
    NotOurs,
    /// The packet is damaged or wrong in itself.
    #[error("malformed message: {0}")]
    Malformed(&'static str),
}

/// A message that is too long to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a message of {0} bytes is longer than the {MAX_MESSAGE} that one may have")]
pub struct TooLong(pub usize);

impl ToReader {
    /// How many file descriptors belong to the message.
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

    /// Whether a frame's descriptor counts the message among those that precede it.
    pub fn is_ordered(&self) -> bool {
        !matches!(self, Self::Welcome(_) | Self::Refused { .. } | Self::Goodbye { .. })
    }

    /// The packet that carries the message.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        encode(self)
    }

    /// The message in a packet from an exporter.
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
                    "event handles that do not fit the credit",
                )?;
            }
            Self::Gpu { events, .. } => check(
                events.len().is_multiple_of(2 * EVENT_HANDLE)
                    && events.len() <= 2 * EVENT_HANDLE * MAX_CREDIT as usize,
                "event handles that fit no credit",
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
    /// The packet that carries the message.
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        encode(self)
    }

    /// The message in a packet from a reader.
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

/// Makes one short line of what a peer wrote: it ends up in logs and on terminals.
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
    // Serialising into a growing buffer has no way to fail: our types are plain data.
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
        return Err(DecodeError::Malformed("reserved bytes in the header"));
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(DecodeError::Malformed("bytes after the message")),
        Err(_) => Err(DecodeError::Malformed("the body is no message")),
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
    fn messages_survive_the_round_trip() {
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
    fn another_version_is_named_and_other_protocols_are_told_apart() {
        let mut packet = ToExporter::Hello(hello()).encode().unwrap();
        packet[4] = 9;
        assert_eq!(ToExporter::decode(&packet), Err(DecodeError::Version(9)));
        assert_eq!(ToExporter::decode(b"GET / HTTP/1.1"), Err(DecodeError::NotOurs));
        assert_eq!(ToExporter::decode(b""), Err(DecodeError::NotOurs));
    }

    #[test]
    fn absurd_values_and_damaged_packets_are_refused() {
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
        assert_eq!(ToExporter::decode(&longer), Err(DecodeError::Malformed("bytes after the message")));
    }

    #[test]
    fn what_a_peer_writes_is_one_short_line() {
        let text = format!("gone\n\x1b[2Jroot: all is well {}", "é".repeat(2 * MAX_TEXT));
        let goodbye = ToExporter::Goodbye { reason: Reason::Stopped, text: text.clone() };
        let refused = ToReader::Refused { reason: Reason::Stopped, text };
        let Ok(ToExporter::Goodbye { text, .. }) = ToExporter::decode(&goodbye.encode().unwrap()) else {
            panic!("it is a goodbye");
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
    fn a_message_over_the_limit_is_not_made() {
        let message = ToReader::Event { before: 1, kind: 0, payload: Payload::Inline(vec![0; MAX_MESSAGE]) };
        assert!(message.encode().is_err());
    }
}
