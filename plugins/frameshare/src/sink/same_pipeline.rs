// SPDX-License-Identifier: MIT OR Apache-2.0

//! Both ends of a stream in one pipeline.
//!
//! A bin sets none of its sinks to PLAYING before all of them have prerolled. The sinks behind a
//! `framesharesrc` preroll with a frame that this sink publishes in PLAYING, so the pipeline would
//! wait forever. A sink that finds such a source in its pipeline does not preroll.

use super::imp::FrameshareSink;
use crate::{pipeline, src::FrameshareSrc};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

impl FrameshareSink {
    /// Turns prerolling off if the pipeline contains a source that reads this stream.
    pub(super) fn turn_async_off(&self) {
        let sink = self.obj();
        if sink.is_async() && self.is_read_in_pipeline() {
            gst::info!(super::log::CAT, imp = self, "no preroll: a source of this pipeline reads the stream");
            sink.set_async(false);
            self.is_async_off.store(true, Relaxed);
        }
    }

    /// Reverts [`FrameshareSink::turn_async_off`].
    pub(super) fn restore_async(&self) {
        if self.is_async_off.swap(false, Relaxed) {
            self.obj().set_async(true);
        }
    }

    fn is_read_in_pipeline(&self) -> bool {
        let Ok(endpoint) = self.settings.read().endpoint() else { return false };
        let elements = pipeline::elements(self.obj().upcast_ref());
        let mut sources = elements.into_iter().filter_map(|element| element.downcast::<FrameshareSrc>().ok());
        sources.any(|source| source.endpoint().is_some_and(|reads| reads.path() == endpoint.path()))
    }
}
