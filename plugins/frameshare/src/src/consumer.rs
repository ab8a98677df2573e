// SPDX-License-Identifier: MIT OR Apache-2.0

//! The use that the pipeline around a source makes of its frames.

use crate::{pipeline, times::Consumer};
use gst::prelude::*;
use gst_base::prelude::*;

/// Returns the use that the pipeline of a source makes of its frames.
pub(super) fn of(source: &gst::Element) -> Consumer {
    let (mut sinks, mut waits, mut decodes, mut muxes, mut is_alone) = (false, false, false, false, true);
    for element in pipeline::elements(source.upcast_ref()) {
        let class = element.metadata("klass").unwrap_or_default();
        let is = |part| class.contains(part);
        decodes |= is("Decoder");
        muxes |= is("Muxer");
        if let Some(sink) = element.downcast_ref::<gst_base::BaseSink>() {
            sinks = true;
            waits |= sink.is_sync();
        }
        // A bin has the flags of its elements.
        let is_source = element.element_flags().contains(gst::ElementFlags::SOURCE);
        is_alone &= !is_source || element.is::<gst::Bin>() || element == *source;
    }
    match (sinks, waits) {
        (false, _) => Consumer::Viewer, // a player that adds its sinks later
        (true, true) if decodes && !muxes => Consumer::Viewer,
        (true, false) if is_alone => Consumer::Recorder,
        (true, _) => Consumer::Other,
    }
}
