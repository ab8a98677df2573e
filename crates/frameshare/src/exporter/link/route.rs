// SPDX-License-Identifier: MIT OR Apache-2.0

//! Routes: the memory and the fence by which readers get frames.

use crate::memory::select::Selected;
use frameshare_protocol::FenceKind;

/// The memory and fence by which a reader gets its frames.
#[derive(Debug)]
pub struct Route {
    pub fence: Selected<FenceKind>,
    /// Frames are downloaded to host memory.
    pub downloads: bool,
    /// The reason why the reader cannot read adopted memory, if it cannot.
    pub cannot_adopt: Option<String>,
    /// The reader is in this very process.
    pub local: bool,
}
