//! The descriptor queue between an exporter and one reader: two pages of atomic words and no lock.
//!
//! Each of the queue's entries carries one lease at a time. The exporter writes a descriptor into an entry
//! and marks its claim `Published`; the reader copies the descriptor and claims it; either the reader's
//! release or the exporter's revocation frees the entry. Entries come free in any order, and sequence numbers
//! order what is in them.
//!
//! # Invariants
//!
//! 1. The exporter writes an entry's descriptor only while no lease is in it.
//! 2. `HEAD` is stored after everything below it is complete: a reader that looks for the oldest publication
//!    below the head it read misses none and takes none out of order.
//! 3. A reader owns a publication if and only if it exchanged exactly `(sequence, Published)` for
//!    `(sequence, Taken)`. Then the descriptor that it copied before is that publication's.
//! 4. Whoever sleeps announces it, fences, and looks once more; whoever has news stores it, fences, and looks
//!    for a sleeper. So one of the two sees the other.
//!
//! # Failure
//!
//! The exporter trusts none of the words that the reader can write: it compares them with what it knows itself
//! and reports a [`Violation`]. A reader trusts a descriptor only after the protocol crate has checked it.
//!
//! Partner operations carry the same tag, `SYNC(...)`.

mod consumer;
mod producer;
#[cfg(test)]
mod tests;

/// Words of a descriptor that are copied: under loom the first few, since each doubles what there is to explore.
const COPIED: usize = if cfg!(loom) { 3 } else { frameshare_protocol::descriptor::WORDS };

pub use consumer::{Consumer, Taken};
pub use producer::{Producer, Revocation, Violation};
