// SPDX-License-Identifier: MIT OR Apache-2.0

//! The way of a frame: placed in a slot while it waits for its time, then published.

use super::{
    copy_stats::CopyReason, imp::FrameshareSink, input::Input, log::CAT, placed::Prepared, stream::Place,
};
use crate::ffi::base_sink::preroll;
use frameshare::exporter::PublishError;
use gst::subclass::prelude::*;
use std::time::Instant;

impl FrameshareSink {
    /// Copies a frame now, if it must be copied, while it waits for its time.
    pub(super) fn prepare_frame(
        &self,
        input: &mut Input,
        buffer: &gst::Buffer,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        // GstBaseSink prepares the preroll buffer twice.
        if input.prepared.as_ref().is_some_and(|prepared| prepared.is_of(buffer)) {
            return Ok(gst::FlowSuccess::Ok);
        }
        if !self.pacing.has_asked() {
            self.find_out_liveness(); // no caps have come
        }
        // Frames of a file wait for their time by design.
        self.arrival.set(self.pacing.is_live().then(frameshare::monotonic_ns));
        let last = input.prepared.take();
        input.prepared = Prepared::new(buffer, input.place(buffer));
        drop(last);
        Ok(gst::FlowSuccess::Ok)
    }

    /// Publishes a frame that is due.
    pub(super) fn render_frame(
        &self,
        input: &mut Input,
        buffer: &gst::Buffer,
    ) -> Result<gst::FlowSuccess, gst::FlowError> {
        if input.media.is_empty(buffer) {
            self.drop_empty_frame(input, buffer);
            return Ok(gst::FlowSuccess::Ok);
        }
        self.require_caps(input)?;
        self.wait_for_connection(input, buffer)?;
        self.end_delay(input, buffer);
        self.wait_for_delay(input, buffer)?;
        self.treat_readers(input);
        let unit = input.media.next_unit(buffer);
        let prepared = input.prepared.take().and_then(|prepared| prepared.into_placed(buffer));
        let mut placed = self.place_now(input, buffer, prepared, || input.place(buffer))?;
        loop {
            preroll(self, buffer.upcast_ref())?;
            // Converted again after a pause, which moved the base time.
            let segment = self.segment();
            let times = self.times_in(segment.as_ref(), input, buffer.pts(), buffer.dts(), buffer.duration());
            self.forward_timeline(input, segment.as_ref(), times);
            self.forward_latency(input, times);
            let max_lateness = input.settings.refresh(&self.settings).max_lateness;
            let place = Place {
                times,
                arrived: self.arrival.get(),
                is_discont: input.is_discont,
                late_after: input.pace.late_after(max_lateness, times),
                unit,
            };
            let begin = Instant::now();
            match self
                .wait(&input.stream, || input.stream.publish(&placed, buffer, input.media.info(), place))
            {
                Ok(sequence) => {
                    input.is_discont = false;
                    input.pace.note_publication(begin.elapsed());
                    self.warn_of_copies(input);
                    gst::trace!(CAT, imp = self, "{buffer:?} is frame {sequence}");
                    return Ok(gst::FlowSuccess::Ok);
                }
                Err(PublishError::Interrupted) => {}
                Err(why @ (PublishError::NotForAll(_) | PublishError::WouldWait)) => {
                    gst::debug!(CAT, imp = self, "a frame is copied after all: {why}");
                    let reason = match why {
                        PublishError::WouldWait => CopyReason::ReaderWaits,
                        _ => CopyReason::ReaderCannot,
                    };
                    let place = || input.stream.place_for_all(buffer, input.media.info(), reason);
                    placed = self.place_now(input, buffer, None, place)?;
                }
                Err(error) => {
                    gst::element_imp_error!(
                        self,
                        gst::ResourceError::Write,
                        ("The frame could not be published: {}", error)
                    );
                    self.note_failure();
                    return Err(gst::FlowError::Error);
                }
            }
        }
    }
}
