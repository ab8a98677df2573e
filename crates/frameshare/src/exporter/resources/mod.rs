// SPDX-License-Identifier: MIT OR Apache-2.0

//! What an exporter holds of the system and of the GPU. Each owns its fields, and decides nothing.

mod copier;
mod deferred;
mod dma_bufs;
mod downloads;
mod metadata;
mod pinned;

pub use deferred::Deferred;
pub use dma_bufs::DmaBufs;
pub use downloads::Downloads;
pub use metadata::{LargeAreas, Metadata};
pub use pinned::Pinned;
