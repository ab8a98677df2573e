// SPDX-License-Identifier: MIT OR Apache-2.0

//! Signals of `framesharesrc`.

use crate::meta::FrameshareMeta;
use glib::subclass::Signal;
use gst::prelude::*;
use std::sync::LazyLock;

/// Returns the signals: `frame-info` is an action, for languages that see no C structures.
///
/// A structure is built for each call. A GstCustomMeta would build one for each frame.
pub(super) fn signals() -> &'static [Signal] {
    static SIGNALS: LazyLock<Vec<Signal>> = LazyLock::new(|| {
        let frame_info = Signal::builder("frame-info")
            .param_types([gst::Buffer::static_type()])
            .return_type::<Option<gst::Structure>>()
            .action()
            .class_handler(|values| {
                let buffer = values.get(1).and_then(|value| value.get::<gst::Buffer>().ok());
                Some(buffer.and_then(|buffer| frame_info(&buffer)).to_value())
            });
        vec![frame_info.build()]
    });
    &SIGNALS
}

/// Returns the numbers of a buffer's frame; none if no `framesharesrc` pushed it.
fn frame_info(buffer: &gst::BufferRef) -> Option<gst::Structure> {
    let meta = buffer.meta::<FrameshareMeta>()?;
    let structure = gst::Structure::builder("frame-info")
        .field("session", meta.session())
        .field("sequence", meta.sequence())
        .field("lost-before", meta.lost_before())
        .field("published", meta.published())
        .field("repeats", meta.repeats());
    Some(structure.build())
}
