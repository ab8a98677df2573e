// SPDX-License-Identifier: MIT OR Apache-2.0

//! The buffer that `GstBaseSrc` has got and not pushed yet, as a copy that shares its memory.
//!
//! - If a live source is paused while `create` returns, `GstBaseSrc` drops the buffer, waits, and
//!   calls `create` again (seen with GStreamer 1.26). It gets the copy then. A second reference
//!   would make `GstBaseSrc` copy the buffer itself, to mark it, and lose metas.
//! - Units of AVI files and elementary streams have a decoding time only, and some buffers no time.
//!   `GstBaseSrc` gives the former their decoding time as their presentation time, and the first of
//!   the latter the start of the segment (GStreamer 1.22 to 1.28). A wrong time is worse than none,
//!   which parsers and decoders find by themselves: a probe puts back the copy's, unless
//!   `do-timestamp` asks for times.

use gst_base::prelude::*;

/// A copy of the buffer that `create` has returned, until it is pushed.
#[derive(Debug, Default)]
pub(super) struct Unpushed(Option<gst::Buffer>);

impl Unpushed {
    /// Keeps a copy of a buffer that is about to be pushed.
    pub fn keep(&mut self, buffer: &gst::Buffer) {
        self.0 = Some(buffer.copy());
    }

    /// Returns the buffer that was not pushed, if there is one.
    pub fn take(&mut self) -> Option<gst::Buffer> {
        self.0.take()
    }
}

/// Calls `take` for each buffer that the source pushes, which forgets the copy, and gives the
/// buffer its own times again.
pub(super) fn watch(
    source: &gst_base::BaseSrc,
    take: impl Fn() -> Option<gst::Buffer> + Send + Sync + 'static,
) {
    let weak = source.downgrade();
    source.src_pad().add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let unpushed = take();
        if let Some(unpushed) = unpushed.filter(|unpushed| unpushed.pts().is_none())
            && let Some(gst::PadProbeData::Buffer(buffer)) = &mut info.data
            && weak.upgrade().is_some_and(|source| !source.does_timestamp())
            && (buffer.pts(), buffer.dts()) != (None, unpushed.dts())
        {
            let buffer = buffer.make_mut();
            buffer.set_pts(None);
            buffer.set_dts(unpushed.dts());
        }
        gst::PadProbeReturn::Ok
    });
}
