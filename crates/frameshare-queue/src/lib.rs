// SPDX-License-Identifier: MIT OR Apache-2.0

//! The descriptor queue between an exporter and one reader: two pages of atomic words and no lock.
//!
//! The words of the pages are of any kind (see [`Page`]): the engine's, loom's, a simulator's.
//!
//! Each of the queue's entries carries one lease at a time. The exporter writes a descriptor into
//! an entry and marks its claim `Published`; the reader copies the descriptor and claims it; either
//! the reader's release or the exporter's revocation frees the entry. Entries become free in any
//! order, and sequence numbers order their contents.
//!
//! # Invariants
//!
//! 1. The exporter writes an entry's descriptor only while it carries no lease.
//! 2. `HEAD` is stored after everything below it is complete: a reader that takes the oldest
//!    publication below the head that it read misses none and takes none out of order.
//! 3. A reader owns a publication if and only if it exchanged exactly `(sequence, Published)` for
//!    `(sequence, Taken)`. Then the descriptor that it copied before is that publication's.
//! 4. A side that is about to sleep sets its flag, fences, and checks once more; the other side
//!    stores its change, fences, and checks the flag. So one of the two sees the other.
//! 5. A reader that sleeps on a futex loads its word before it checks once more; the exporter adds
//!    to the word after its change. So the check sees the change, the word differs, or the reader
//!    is woken.
//!
//! # Failure
//!
//! The exporter checks every word that the reader can write against its own state and reports a
//! [`Violation`]. A reader uses a descriptor only after the protocol crate has checked it.
//!
//! Partner operations carry the same tag, `SYNC(...)`.

#![forbid(unsafe_code)]

mod consumer;
mod page;
mod producer;
#[cfg(test)]
mod tests;

/// Number of copied words of a descriptor: under loom the first few, since each doubles the number
/// of interleavings.
const COPIED: usize = if cfg!(loom) { 3 } else { frameshare_protocol::descriptor::WORDS };

/// The object on which a reader sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleeper {
    /// Its end of the wake-up socket.
    Socket,
    /// Its word of the wake-up page.
    Futex,
}

pub use consumer::{Consumer, LastAccess, Taken};
pub use page::{Page, Word};
pub use producer::{Ordered, Producer, Revocation, Violation};
