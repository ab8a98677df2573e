// SPDX-License-Identifier: MIT OR Apache-2.0

//! Routes: the memory and the fence by which readers get frames.

use frameshare_core::{exporter::link::CannotAdopt, selected::Selected};
use frameshare_protocol::FenceKind;

/// The memory and fence by which a reader gets its frames.
#[derive(Debug)]
pub struct Route {
    pub fence: Selected<FenceKind>,
    /// Frames are downloaded to host memory.
    pub downloads: bool,
    /// The reasons why the reader cannot read adopted memory.
    pub cannot_adopt: CannotAdopt,
    /// The reader is in this very process.
    pub local: bool,
}

impl Route {
    /// Uses downloads instead of the GPU memory, with the choice that says why.
    pub fn download(&mut self, choice: Selected<FenceKind>) {
        (self.fence, self.downloads, self.cannot_adopt.cuda) = (choice, true, None);
    }
}
