// SPDX-License-Identifier: MIT OR Apache-2.0

//! Generations of slots, and places for frames.

mod generation;

pub use generation::Generation;

use super::system::System;

/// The purpose of an acquired slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Purpose {
    /// Upstream writes the slot and holds it without limit. Refused where it would take slots that
    /// are reserved for the readers' credit.
    Pool,
    /// The caller copies a frame into it, publishes it and drops it.
    Copy,
}

/// The reason why there is no slot.
#[derive(Debug)]
pub enum NoSlot<S: System> {
    /// All slots within the limit are in use.
    Exhausted {
        /// The limit.
        max_slots: u32,
    },
    /// There is no memory of this kind.
    Memory(S::MemoryError),
    /// The stream is closed.
    Closed,
    /// No slot can have this size.
    Size(u64),
}

/// A place for a frame.
#[derive(Debug)]
pub enum Vacancy<S: System> {
    /// A free slot.
    Free(S::Slot),
    /// Capacity for one more slot, to be allocated.
    Unallocated(Unallocated<S>),
}

/// Capacity for one more slot of a generation.
#[derive(Debug)]
pub struct Unallocated<S: System> {
    /// The number of the generation.
    pub generation: u32,
    /// The source of its memory.
    pub allocator: S::Allocator,
    /// Its size in bytes.
    pub slot_size: u64,
}
