// SPDX-License-Identifier: MIT OR Apache-2.0

//! Leases: imported slots, the frames in them, and the end of each lease.
//!
//! A [`Frame`] keeps its import mapped and its lease open; both go to the exporter through the
//! [`Channel`], which outlives the connection while frames are held.

mod channel;
mod deferred_release;
mod frame;
mod import;
mod key_units;
mod release;
mod slot_importer;

pub use frame::Frame;
pub use key_units::KeyUnitRequests;
pub(super) use {
    channel::{Channel, Teardown, Watcher},
    frame::Lease,
    import::Imported,
    slot_importer::SlotImporter,
};
