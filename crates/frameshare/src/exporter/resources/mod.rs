// SPDX-License-Identifier: MIT OR Apache-2.0

//! Resources of the system and of the GPU that an exporter holds. Each object owns its fields, and
//! decides nothing.

mod copier;
mod deferred;
mod download_queue;
mod metadata_pages;
mod pinned;
mod unsettled;

pub use deferred::Deferred;
pub use download_queue::Downloads;
pub use metadata_pages::{LargeAreas, Metadata};
pub use pinned::Pinned;
pub use unsettled::DmaBufs;
