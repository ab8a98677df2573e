// SPDX-License-Identifier: MIT OR Apache-2.0

//! Refused buffers and caps, and the end of the stream after one.
//!
//! An upstream element that gets an error from the sink posts its own and sends an end of stream.
//! Readers must not take that for a complete stream: the sink records its failure, and closes the
//! stream with an error instead.

use super::{
    imp::FrameshareSink,
    input::Input,
    kinds::{Export, Memory},
    log::CAT,
    stream::Stream,
};
use crate::drm::DrmFrames;
use gst::{prelude::*, subclass::prelude::*};
use std::sync::atomic::Ordering::Relaxed;

impl FrameshareSink {
    /// Records the last caps from upstream: the pad refuses some before the sink sees them. Posts
    /// the error for memory or media that cannot be shared.
    pub(super) fn watch_caps(&self, pad: &gst::Pad) {
        let sink = self.downgrade();
        pad.add_probe(gst::PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
            if let Some(gst::EventView::Caps(caps)) = info.event().map(|event| event.view())
                && let Some(sink) = sink.upgrade()
            {
                let offered = caps.caps_owned();
                sink.input.edit(|input| input.media.offer(offered));
                let checked = sink.check_memory(caps.caps());
                if let Err(message) = checked.and_then(|()| sink.check_media(caps.caps())) {
                    sink.post_error_message(message);
                    sink.note_failure();
                }
            }
            gst::PadProbeReturn::Ok
        });
    }

    /// Returns whether a caps query may come from a link that is being made in a stopped pipeline.
    pub(super) fn is_being_linked(&self) -> bool {
        let sink = self.obj();
        let is_linked = sink.static_pad("sink").is_none_or(|pad| pad.is_linked());
        !is_linked && sink.current_state() == gst::State::Null
    }

    /// Fails if all caps of upstream are of memory or media that cannot be shared.
    pub(super) fn check_upstream(&self) -> Result<(), gst::ErrorMessage> {
        let Some(pad) = self.obj().static_pad("sink") else { return Ok(()) };
        let upstream = pad.peer_query_caps(None);
        let has_common = upstream.is_any() || upstream.can_intersect(&pad.query_caps(None));
        if has_common {
            return Ok(());
        }
        self.check_memory(&upstream).and_then(|()| self.check_media(&upstream))
    }

    /// Refuses frames in memory that cannot be shared with these properties.
    pub(super) fn check_memory(&self, caps: &gst::CapsRef) -> Result<(), gst::ErrorMessage> {
        super::caps::check_memory(caps)?;
        let copies = {
            let settings = self.settings.read();
            settings.memory != Memory::Auto || settings.export == Export::Copy
        };
        match DrmFrames::of(caps) {
            Some(frames) if frames.has_device_layout && copies => Err(super::caps::not_copyable(caps)),
            _ => Ok(()),
        }
    }

    /// Records that caps or a buffer were refused, after the error was posted.
    pub(super) fn note_failure(&self) {
        if let Some(stream) = self.stream() {
            stream.failure.set();
        }
    }

    /// Ends the stream for all readers, with an error if the sink has failed.
    pub(super) fn end(&self, stream: &Stream) {
        let offered = self.input.edit(|input| input.media.take_offered()).flatten();
        let accepted = self.obj().static_pad("sink").and_then(|pad| pad.current_caps());
        let refused = match &offered {
            Some(_) => offered != accepted,
            // An upstream element may have asked first.
            None => self.has_refused_encoded.load(Relaxed),
        };
        if refused || stream.failure.is_set() {
            stream.exporter.fail("its pipeline sent what framesharesink cannot share");
        } else {
            stream.exporter.end_of_stream();
        }
    }

    /// Fails for a buffer without caps, which `GstBaseSink` passes and readers cannot interpret.
    pub(super) fn require_caps(&self, input: &Input) -> Result<(), gst::FlowError> {
        if input.media.is_known() || input.settings.any_caps {
            return Ok(());
        }
        gst::element_imp_error!(
            self,
            gst::CoreError::Negotiation,
            ("Upstream did not say what it sends: put a capsfilter or a typefind before framesharesink")
        );
        self.note_failure();
        Err(gst::FlowError::NotNegotiated)
    }

    /// Drops an empty buffer of raw video. The first one posts a warning.
    pub(super) fn drop_empty_frame(&self, input: &mut Input, buffer: &gst::BufferRef) {
        gst::warning!(CAT, imp = self, "empty buffer in raw video is dropped: {buffer:?}");
        if input.media.drop_empty() {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                ("Upstream sent an empty buffer in raw video: it is dropped, as all further ones are")
            );
        }
    }
}
