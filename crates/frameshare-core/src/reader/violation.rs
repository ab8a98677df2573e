// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rules of the protocol that an exporter broke, found by the decisions of a reader.

use frameshare_protocol::{Sequence, SlotId, descriptor::InvalidDescriptor};

/// A rule of the protocol that the exporter broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// Kept units exceed the reader's limit.
    #[error("kept units of {size} bytes exceed the limit of {limit}")]
    TooManyKeptUnits {
        /// Their size in bytes, all messages together.
        size: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The records of kept units do not fill the announced size.
    #[error("kept units of {size} bytes end after {end} bytes")]
    KeptUnitsEnd {
        /// The announced size in bytes.
        size: u64,
        /// The end of the last unit.
        end: u64,
    },
    /// A message came that only observers get.
    #[error("it sent a message of another kind of connection")]
    UnexpectedMessage,
    /// A second answer to `Hello` came.
    #[error("it answered Hello twice")]
    RepeatedAnswer,
    /// Too many messages wait for frames that do not arrive.
    #[error("its messages precede frames that do not arrive")]
    EarlyMessages,
    /// Messages that precede a frame did not arrive.
    #[error("{missing} messages before frame {sequence} did not arrive")]
    MissingMessages {
        /// The frame.
        sequence: Sequence,
        /// The number of messages.
        missing: u64,
    },
    /// More generations exist than a reader imports.
    #[error("it has more than {limit} generations")]
    TooManyGenerations {
        /// The limit.
        limit: usize,
    },
    /// A generation was announced twice.
    #[error("generation {generation} was announced twice")]
    DuplicateGeneration {
        /// The generation.
        generation: u32,
    },
    /// More slots exist than a reader imports.
    #[error("it has more than {limit} slots")]
    TooManySlots {
        /// The limit.
        limit: usize,
    },
    /// A slot was announced twice.
    #[error("slot {slot} was announced twice")]
    DuplicateSlot {
        /// The slot.
        slot: SlotId,
    },
    /// A slot came before its generation, or after its retirement.
    #[error("slot {} is of the unknown generation {}", slot.index, slot.generation)]
    SlotOfUnknownGeneration {
        /// The slot.
        slot: SlotId,
    },
    /// A slot was retired that was not announced, or twice.
    #[error("the unknown slot {slot} was retired")]
    RetiredUnknownSlot {
        /// The slot.
        slot: SlotId,
    },
    /// A frame is not inside its slot.
    #[error(transparent)]
    Descriptor(#[from] InvalidDescriptor),
    /// A frame is in a generation that was not announced.
    #[error("frame {sequence} is in the unknown generation {generation}")]
    UnknownGeneration {
        /// The frame.
        sequence: Sequence,
        /// The generation.
        generation: u32,
    },
    /// A frame is in a slot that was not announced.
    #[error("frame {sequence} is in the unknown slot {slot}")]
    UnknownSlot {
        /// The frame.
        sequence: Sequence,
        /// The slot.
        slot: u32,
    },
    /// Sequence numbers went back.
    #[error("frame {sequence} came after frame {after}")]
    FrameOrder {
        /// The frame.
        sequence: Sequence,
        /// The last frame before it.
        after: Sequence,
    },
}
