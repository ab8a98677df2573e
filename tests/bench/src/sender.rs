// SPDX-License-Identifier: MIT OR Apache-2.0

//! Senders of the frames.

use anyhow::Result;
use gst::prelude::*;
use std::mem::ManuallyDrop;

/// Sender of the frames.
pub trait Sender {
    /// Returns an error if the sender has failed.
    fn check(&self) -> Result<()>;
    /// Number of copied frames, if known.
    fn copied(&self) -> Option<u64>;
    /// Stops sending.
    fn stop(&self);
}

/// Sender that is a pipeline.
pub struct Pipeline {
    /// Not dropped after an error, since stopping a failed pipeline might hang; the process exits.
    pipeline: ManuallyDrop<gst::Pipeline>,
    sink: gst::Element,
}

impl Pipeline {
    /// Wraps a pipeline whose last element is `sink`.
    pub fn new(pipeline: gst::Pipeline, sink: gst::Element) -> Self {
        Self { pipeline: ManuallyDrop::new(pipeline), sink }
    }
}

impl Sender for Pipeline {
    fn check(&self) -> Result<()> {
        crate::check_bus(&self.pipeline)
    }

    fn copied(&self) -> Option<u64> {
        let stats =
            self.sink.find_property("stats").map(|_| self.sink.property::<gst::Structure>("stats"))?;
        stats.get::<gst::Structure>("paths").ok()?.get("copied").ok()
    }

    fn stop(&self) {
        let _ = self.pipeline.set_state(gst::State::Null);
    }
}
