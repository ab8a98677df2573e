// SPDX-License-Identifier: MIT OR Apache-2.0

//! Protocol between the exporter of a video stream and its readers: control messages, the layout of
//! shared pages, stream names, limits, and the validation of all of them.
//!
//! This crate does no I/O and does not use CUDA: it encodes values as bytes and words, and decodes
//! bytes and words from an untrusted peer into values or errors. Sockets, mappings and atomics are
//! in the `frameshare` crate.
//!
//! # Versions
//!
//! The header of every message and of every page contains [`VERSION`]. Only the layout of the
//! header itself is stable, so that two versions can detect a mismatch; everything after it may
//! change with the version.
#![forbid(unsafe_code)]

pub mod counters;
pub mod descriptor;
pub mod form;
pub mod ids;
pub mod kept;
pub mod kind;
pub mod limits;
pub mod message;
pub mod name;
pub mod page;

pub use counters::{AGE_BOUNDS, Ages, CopyCount, ReaderCopy};
pub use descriptor::{Descriptor, Plane};
pub use ids::{AreaIndex, EntryIndex, Sequence, SlotId};
pub use kind::{FenceKind, MemoryKind, Policy};
pub use name::StreamName;

/// The protocol version implemented by this crate.
pub const VERSION: u16 = 9;
