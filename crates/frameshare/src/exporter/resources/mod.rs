// SPDX-License-Identifier: MIT OR Apache-2.0

//! Resources of the system and of the GPU that an exporter holds. Each object owns its fields, and
//! decides nothing.

mod copier;
mod deferred;
mod dma_bufs_in_use;
mod download_queue;
mod metadata_pages;
mod pinned;

pub use deferred::Deferred;
pub use dma_bufs_in_use::DmaBufs;
pub use download_queue::Downloads;
pub use metadata_pages::{LargeAreas, Metadata};
pub use pinned::Pinned;
