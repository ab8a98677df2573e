// SPDX-License-Identifier: MIT OR Apache-2.0

//! Arrival of messages: what is handled at once, and what in its place among the frames.

use super::{ending::End, generations::Announcement, order::Ordered, violation::Violation};
use frameshare_protocol::{
    FenceKind, Sequence, SlotId,
    message::{GpuUuid, Payload, ToReader},
};

/// The handling of a message that has arrived. `F` is the file of kept units.
#[derive(Debug)]
pub enum Arrival<F> {
    /// To be handled at once.
    AtOnce(AtOnce),
    /// To be queued in front of this frame.
    Ordered(Sequence, Ordered<F>),
    /// To be queued in front of this frame, once it is read.
    Unread(Sequence, Unread),
}

/// A message that is handled at once.
#[derive(Debug)]
pub enum AtOnce {
    /// To use a GPU from now on.
    UseGpu {
        /// The GPU of the frames.
        gpu: GpuUuid,
        /// The kind of fence of these frames.
        fence: FenceKind,
        /// With event fences, the handles of the events.
        events: Vec<u8>,
    },
    /// To add a generation.
    Add(Announcement),
    /// To import a slot.
    Import {
        /// The slot.
        slot: SlotId,
        /// Data that an import of this memory kind needs in addition to a descriptor.
        handle: Vec<u8>,
    },
    /// To drop the imports of a generation.
    Retire(u32),
    /// To drop the import of a slot.
    RetireSlot(SlotId),
    /// To map so many large metadata areas.
    AddLargeAreas(u32),
    /// To end the connection, after all that has arrived before.
    End(End),
}

/// A message whose content is to be read first: it may be in a memory file.
#[derive(Debug)]
pub enum Unread {
    /// An in-band event.
    Event {
        /// Its kind.
        kind: u32,
        /// Whether joining readers get the newest event of the kind.
        sticky: bool,
        /// Its content.
        payload: Payload,
    },
    /// Oversized metadata of the frame.
    Metadata(Payload),
    /// Kept units.
    KeptUnits {
        /// Number of units.
        count: u32,
        /// Size of the units in bytes.
        size: u64,
    },
}

impl<F> Arrival<F> {
    /// Returns the handling of a message. `has_published` returns whether an untaken frame in front
    /// of this one is published.
    ///
    /// # Errors
    /// [`Violation::RepeatedAnswer`] and [`Violation::UnexpectedMessage`] for messages that do not
    /// belong to the connection of a reader that has joined.
    pub fn of(message: ToReader, has_published: impl FnOnce(Sequence) -> bool) -> Result<Self, Violation> {
        Ok(match message {
            ToReader::Gpu { gpu, fence, events } => Self::AtOnce(AtOnce::UseGpu { gpu, fence, events }),
            ToReader::Generation { generation, memory, slot_size, adopted } => {
                Self::AtOnce(AtOnce::Add(Announcement { generation, memory, slot_size, adopted }))
            }
            ToReader::Slot { slot, handle } => Self::AtOnce(AtOnce::Import { slot, handle }),
            // Many generations are retired while a reader is paused: a retirement waits only for
            // untaken frames. Held frames keep their imports.
            ToReader::Retire { before, generation } if has_published(before) => {
                Self::Ordered(before, Ordered::Retire(generation))
            }
            ToReader::Retire { generation, .. } => Self::AtOnce(AtOnce::Retire(generation)),
            ToReader::RetireSlot { slot } => Self::AtOnce(AtOnce::RetireSlot(slot)),
            ToReader::LargeAreas { count } => Self::AtOnce(AtOnce::AddLargeAreas(count)),
            ToReader::Goodbye { reason, text } => Self::AtOnce(AtOnce::End(End::Closed(reason, text))),
            ToReader::Format { before, memory, format } => {
                Self::Ordered(before, Ordered::Format(memory, format))
            }
            ToReader::Skipped { before } => Self::Ordered(before, Ordered::Skipped),
            ToReader::EndOfStream { before } => Self::Ordered(before, Ordered::EndOfStream),
            ToReader::Event { before, kind, sticky, payload } => {
                Self::Unread(before, Unread::Event { kind, sticky, payload })
            }
            ToReader::Metadata { sequence, payload } => Self::Unread(sequence, Unread::Metadata(payload)),
            ToReader::KeptUnits { before, count, size } => {
                Self::Unread(before, Unread::KeptUnits { count, size })
            }
            ToReader::Welcome(_) | ToReader::Refused { .. } => return Err(Violation::RepeatedAnswer),
            ToReader::Snapshot { .. } | ToReader::Disconnected { .. } => {
                return Err(Violation::UnexpectedMessage);
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use frameshare_protocol::message::{Disconnection, Reason};

    fn arrival(message: ToReader, has_published: bool) -> Result<Arrival<()>, Violation> {
        Arrival::of(message, |_| has_published)
    }

    #[test]
    fn retirement_waits_for_untaken_frames_only() {
        let retire = || ToReader::Retire { before: Sequence(5), generation: 2 };
        let waiting = Arrival::<()>::of(retire(), |before| before == Sequence(5));
        assert!(matches!(waiting, Ok(Arrival::Ordered(Sequence(5), Ordered::Retire(2)))), "{waiting:?}");
        let at_once = arrival(retire(), false);
        assert!(matches!(at_once, Ok(Arrival::AtOnce(AtOnce::Retire(2)))), "{at_once:?}");
        // The retirement of a slot comes after the last frame in it.
        let slot = SlotId { generation: 2, index: 1 };
        let at_once = arrival(ToReader::RetireSlot { slot }, true);
        assert!(matches!(at_once, Ok(Arrival::AtOnce(AtOnce::RetireSlot(_)))), "{at_once:?}");
    }

    #[test]
    fn messages_between_frames_keep_their_place() {
        let before = Sequence(7);
        let payload = || Payload::Sealed(100_000);
        for message in [
            ToReader::Skipped { before },
            ToReader::EndOfStream { before },
            ToReader::Event { before, kind: 1, sticky: true, payload: payload() },
            ToReader::Metadata { sequence: before, payload: payload() },
            ToReader::KeptUnits { before, count: 3, size: 100 },
        ] {
            let arrival = arrival(message, false);
            assert!(
                matches!(arrival, Ok(Arrival::Ordered(Sequence(7), _) | Arrival::Unread(Sequence(7), _))),
                "{arrival:?}"
            );
        }
    }

    /// The end waits for no frame: frames from before it are delivered before its report.
    #[test]
    fn close_message_ends_the_connection_at_once() {
        let goodbye = ToReader::Goodbye { reason: Reason::Stopped, text: "it has stopped".into() };
        let arrival = arrival(goodbye, true);
        assert!(
            matches!(&arrival, Ok(Arrival::AtOnce(AtOnce::End(End::Closed(Reason::Stopped, text))))
                if text == "it has stopped"),
            "{arrival:?}"
        );
    }

    #[test]
    fn messages_of_other_connections_are_violations() {
        let refused = ToReader::Refused { reason: Reason::Violation, text: String::new() };
        assert_eq!(arrival(refused, false).unwrap_err(), Violation::RepeatedAnswer);
        let disconnected = ToReader::Disconnected { reader: 1, outcome: Disconnection::Done };
        assert_eq!(arrival(disconnected, false).unwrap_err(), Violation::UnexpectedMessage);
    }
}
