//! What crosses between the exporter of a video stream and its readers: control messages, the layout of the
//! pages they share, names, limits, and the checks on all of it.
//!
//! This crate does no I/O and knows no CUDA: it turns values into bytes and words, and bytes and words of a
//! peer that nobody trusts back into values or an error. Sockets, mappings and atomics are the engine's.
//!
//! # Versions
//!
//! [`VERSION`] stands in the header of every message and of every page. Only the header itself never changes,
//! so that two versions can tell each other apart; everything behind it may change with the version.
#![forbid(unsafe_code)]

pub mod descriptor;
pub mod kind;
pub mod limits;
pub mod message;
pub mod name;
pub mod page;

pub use descriptor::{Descriptor, Plane};
pub use kind::{FenceKind, MemoryKind, Policy};
pub use name::StreamName;

/// The version of the protocol that this crate speaks.
pub const VERSION: u16 = 2;
