// SPDX-License-Identifier: MIT OR Apache-2.0

//! Routes: the memory and the fence by which readers get frames.

use crate::memory::select::Selected;
use frameshare_protocol::{FenceKind, MemoryKind};

/// The reasons why a reader cannot read adopted memory, by its kind.
#[derive(Clone, Debug, Default)]
pub struct CannotAdopt {
    /// CUDA memory.
    pub cuda: Option<String>,
    pub dma_buf: Option<String>,
}

impl CannotAdopt {
    /// The reason for memory of this kind, if there is one.
    pub fn of(&self, kind: MemoryKind) -> Option<&str> {
        if kind == MemoryKind::DmaBuf { self.dma_buf.as_deref() } else { self.cuda.as_deref() }
    }
}

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
