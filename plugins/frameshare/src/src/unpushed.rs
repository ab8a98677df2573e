// SPDX-License-Identifier: MIT OR Apache-2.0

//! The buffer that `GstBaseSrc` has got and not pushed yet.
//!
//! If a live source is paused while `create` returns, `GstBaseSrc` drops the buffer, waits, and
//! calls `create` again (seen with GStreamer 1.26). It gets a copy of the buffer then, which shares
//! its memory. A second reference would make `GstBaseSrc` copy the buffer itself, to mark it, and
//! lose metas.

use crate::sync::lock;
use gst::prelude::*;
use std::sync::{Arc, Mutex};

#[derive(Debug, Default)]
pub(super) struct Unpushed(Arc<Mutex<Option<gst::Buffer>>>);

impl Unpushed {
    /// Forgets each buffer that is pushed on a pad.
    pub fn watch(&self, pad: &gst::Pad) {
        let kept = self.0.clone();
        pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
            let pushed = lock(&kept).take();
            drop(pushed);
            gst::PadProbeReturn::Ok
        });
    }

    /// Keeps a copy of a buffer that is about to be pushed.
    pub fn keep(&self, buffer: &gst::Buffer) {
        let last = lock(&self.0).replace(buffer.copy());
        drop(last);
    }

    /// Returns the buffer that was not pushed, if there is one.
    pub fn take(&self) -> Option<gst::Buffer> {
        lock(&self.0).take()
    }
}
