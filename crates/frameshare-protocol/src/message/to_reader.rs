// SPDX-License-Identifier: MIT OR Apache-2.0

//! Messages from exporter to reader or observer.

use super::{
    codec::{self, DecodeError, Malformation, TooLong},
    content::{Format, Payload, Reason},
    handshake::{EVENT_HANDLE, GpuUuid, Welcome},
    observe::{Disconnection, Rights},
};
use crate::{
    ids::{Sequence, SlotId},
    kept::RECORD,
    kind::{FenceKind, MemoryKind},
    limits::{
        MAX_CREDIT, MAX_KEPT_UNITS, MAX_LARGE_AREAS, MAX_PAYLOAD, MAX_SLOT_SIZE, MAX_SLOTS, MAX_SNAPSHOT,
        MAX_TEXT,
    },
};
use serde::{Deserialize, Serialize};

/// A message from exporter to reader or observer.
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
        /// The slot.
        slot: SlotId,
        /// Data that an import of this memory kind needs in addition to a descriptor.
        handle: Vec<u8>,
    },
    /// From frame `before` on, no frame uses this generation. The reader must release its imports
    /// and acknowledge with [`ToExporter::Retired`](super::ToExporter::Retired).
    Retire {
        /// Sequence number of the first frame after the message.
        before: Sequence,
        /// The retired generation.
        generation: u32,
    },
    /// The format of the frames from `before` on.
    Format {
        /// Sequence number of the first frame after the message.
        before: Sequence,
        /// Memory kind in which this reader receives the frames.
        memory: MemoryKind,
        /// The format.
        format: Format,
    },
    /// An event in order with the frames, defined by the publisher.
    Event {
        /// Sequence number of the first frame after the message.
        before: Sequence,
        /// Kind of event.
        kind: u32,
        /// Whether joining readers get the newest event of the kind.
        sticky: bool,
        /// Content of the event; a sealed payload carries a descriptor.
        payload: Payload,
    },
    /// Metadata of frame `sequence` that is too large for the frame's metadata area.
    Metadata {
        /// Sequence number of the frame.
        sequence: Sequence,
        /// The metadata; a sealed payload carries a descriptor.
        payload: Payload,
    },
    /// Units of an encoded stream from before the reader joined, from a key unit on, in a sealed
    /// memory file ([`kept`](crate::kept)). They come before frame `before` and take no credit.
    KeptUnits {
        /// Sequence number of the first frame after the message.
        before: Sequence,
        /// Number of units.
        count: u32,
        /// Size of the units in bytes.
        size: u64,
    },
    /// Frames before `before` are not for this reader, which joined an encoded stream between two
    /// key units: they do not count as lost.
    Skipped {
        /// Sequence number of the first frame after the message.
        before: Sequence,
    },
    /// End of the stream. The stream may resume later.
    EndOfStream {
        /// Sequence number of the first frame after the message, if there is one.
        before: Sequence,
    },
    /// Close message: the exporter closes this connection.
    Goodbye {
        /// Reason for closing.
        reason: Reason,
        /// Human-readable reason.
        text: String,
    },
    /// State of the stream, for an observer.
    Snapshot {
        /// The newest request that this answers, 0 before the first.
        request: u32,
        /// The rights of a reader of this user.
        rights: Rights,
        /// An encoded [`Snapshot`](super::Snapshot); a sealed payload carries a descriptor.
        payload: Payload,
    },
    /// Answer to [`ToExporter::Disconnect`](super::ToExporter::Disconnect).
    Disconnected {
        /// Number of the reader.
        reader: u64,
        /// The outcome.
        outcome: Disconnection,
    },
    /// No frame uses this slot any more. The reader must release its import and acknowledge with
    /// [`ToExporter::RetiredSlot`](super::ToExporter::RetiredSlot). The number of the slot is not
    /// used again.
    RetireSlot {
        /// The retired slot.
        slot: SlotId,
    },
    /// Large areas for metadata that exceeds the areas of the `Welcome`, in one file for all
    /// readers. Sent at most once, before the first frame that uses one.
    LargeAreas {
        /// Number of large areas.
        count: u32,
    },
}

impl ToReader {
    /// Returns the number of file descriptors sent with the message.
    pub fn fds(&self) -> std::ops::RangeInclusive<usize> {
        match self {
            Self::Welcome(welcome) => {
                let timeline = usize::from(welcome.fence == FenceKind::Timeline);
                let count = 4 + timeline + usize::from(welcome.wake_word.is_some());
                count..=count
            }
            Self::Gpu { fence: FenceKind::Timeline, .. } => 1..=1,
            Self::Generation { .. } | Self::Slot { .. } => 0..=1,
            Self::Event { payload: Payload::Sealed(_), .. }
            | Self::Metadata { payload: Payload::Sealed(_), .. }
            | Self::Snapshot { payload: Payload::Sealed(_), .. }
            | Self::KeptUnits { .. }
            | Self::LargeAreas { .. } => 1..=1,
            _ => 0..=0,
        }
    }

    /// Returns whether [`Descriptor::messages`](crate::Descriptor::messages) counts this message.
    pub fn is_ordered(&self) -> bool {
        !matches!(
            self,
            Self::Welcome(_)
                | Self::Refused { .. }
                | Self::Goodbye { .. }
                | Self::Snapshot { .. }
                | Self::Disconnected { .. }
                | Self::RetireSlot { .. }
        )
    }

    /// Encodes the message as a packet.
    ///
    /// # Errors
    /// [`TooLong`] if the packet would exceed [`MAX_MESSAGE`](crate::limits::MAX_MESSAGE).
    pub fn encode(&self) -> Result<Vec<u8>, TooLong> {
        codec::encode(self)
    }

    /// Decodes and validates a packet from an exporter.
    ///
    /// # Errors
    /// [`DecodeError`] for another protocol or version, and for malformed or out-of-range content.
    pub fn decode(packet: &[u8]) -> Result<Self, DecodeError> {
        let mut message: Self = codec::decode(packet)?;
        if let Self::Refused { text, .. } | Self::Goodbye { text, .. } = &mut message {
            codec::make_printable(text, MAX_TEXT);
        }
        let check = |fine: bool, what| if fine { Ok(()) } else { Err(DecodeError::Malformed(what)) };
        match &message {
            Self::Welcome(welcome) => {
                check((1..=MAX_CREDIT).contains(&welcome.credit), Malformation::Credit)?;
                check((1..=MAX_SLOTS).contains(&welcome.areas), Malformation::Areas)?;
                let events = if welcome.fence == FenceKind::Event { 2 * welcome.credit as usize } else { 0 };
                check(welcome.events.len() == events * EVENT_HANDLE, Malformation::EventHandles)?;
            }
            Self::Gpu { events, .. } => check(
                events.len().is_multiple_of(2 * EVENT_HANDLE)
                    && events.len() <= 2 * EVENT_HANDLE * MAX_CREDIT as usize,
                Malformation::EventHandles,
            )?,
            Self::Generation { slot_size, .. } => {
                check((1..=MAX_SLOT_SIZE).contains(slot_size), Malformation::SlotSize)?;
            }
            Self::Event { payload: Payload::Sealed(size), .. }
            | Self::Metadata { payload: Payload::Sealed(size), .. } => {
                check((1..=MAX_PAYLOAD).contains(size), Malformation::Payload)?;
            }
            Self::Snapshot { payload: Payload::Sealed(size), .. } => {
                check((1..=MAX_SNAPSHOT).contains(size), Malformation::Snapshot)?;
            }
            Self::KeptUnits { count, size, .. } => {
                let least = u64::from(*count) * 8 * RECORD as u64;
                let fits = (least..=MAX_PAYLOAD).contains(size) && size.is_multiple_of(8);
                check((1..=MAX_KEPT_UNITS).contains(count) && fits, Malformation::KeptUnits)?;
            }
            Self::LargeAreas { count } => {
                check((1..=MAX_LARGE_AREAS).contains(count), Malformation::Areas)?;
            }
            _ => {}
        }
        Ok(message)
    }
}
