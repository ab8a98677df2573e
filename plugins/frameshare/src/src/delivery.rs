// SPDX-License-Identifier: MIT OR Apache-2.0

//! The way of a frame: from the reader to the buffer that is pushed, behind the formats and events
//! in front of it.

use super::{
    errors,
    frames::{self, Context, FrameError},
    imp::FrameshareSrc,
    log::CAT,
    repeat::Last,
    running::Running,
    settings::FrameshareSrcOnDisconnect,
    stats::Figures,
    timing,
};
use frameshare::reader::{Frame, Item, ReadError, Reader};
use gst::subclass::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

impl FrameshareSrc {
    /// Returns the next buffer to push. The streaming thread calls it in PLAYING; a pause does not
    /// end it.
    pub(super) fn create_buffer(&self, running: &mut Running) -> Result<gst::Buffer, gst::FlowError> {
        if let Some(buffer) = running.unpushed.take() {
            running.unpushed.keep(&buffer);
            return Ok(buffer);
        }
        self.pause.begin();
        let result = loop {
            match self.next_buffer(running) {
                Err(gst::FlowError::Flushing) if self.pause.is_for_switch() => {}
                Err(gst::FlowError::Flushing)
                    if self.pause.wait_for_end(&*self.obj(), &running.interrupt) => {}
                result => break result,
            }
        };
        let is_interrupted = matches!(result, Err(gst::FlowError::Flushing));
        if result.is_err() && !(is_interrupted && running.opened.is_some()) {
            // GstBaseSrc pushes EOS next, and a stream-start must precede it.
            self.push_stream_start(running);
        }
        if let Ok(buffer) = &result
            && (running.settings.is_live || buffer.pts().is_none())
        {
            running.unpushed.keep(buffer);
        }
        result
    }

    /// Waits for the next frame and handles formats and events in front of it.
    fn next_buffer(&self, running: &mut Running) -> Result<gst::Buffer, gst::FlowError> {
        if running.has_ended {
            return Err(gst::FlowError::Eos);
        }
        loop {
            if self.pause.take_switch(&running.interrupt) {
                self.switch(running)?;
            }
            let item = match &mut running.reader {
                Some(reader) => reader.next(running.last.as_ref().map(Last::wait), &running.interrupt),
                None => {
                    running.reader = Some(self.connect(running)?);
                    continue;
                }
            };
            self.read_clock(running);
            match item {
                Ok(Some(Item::Frame(frame))) => {
                    if running.settings.is_live {
                        if self.skips(running, &frame) {
                            continue;
                        }
                    } else {
                        let descriptor = frame.descriptor();
                        let time = descriptor.pts.or(descriptor.dts);
                        self.follow_timeline(running, time, descriptor.duration);
                    }
                    self.open(running);
                    // The lease of the last frame may be the one before the last credit.
                    running.last = None;
                    let is_last_kept = frame.is_last_kept();
                    let mut buffer = self.take_frame(running, frame)?;
                    if is_last_kept && running.settings.is_live {
                        timing::last_until_segment(buffer.make_mut(), &running.live_time);
                    }
                    running.live_time.pushed(&buffer);
                    running.last = self.keep_last(running, &buffer);
                    return Ok(buffer);
                }
                Ok(Some(Item::Format(format))) => {
                    running.last = None;
                    self.take_format(running, &format)?;
                }
                Ok(Some(Item::Event(event))) => {
                    self.take_event(running, &event).map_err(|error| {
                        running.reader = None;
                        self.post_error_message(errors::of_budget(error, &running.endpoint));
                        gst::FlowError::Error
                    })?;
                }
                Ok(Some(Item::Reconnected)) => {
                    gst::info!(CAT, imp = self, "Reconnected to {}", running.endpoint);
                    Figures::count(&self.figures.reconnections);
                    running.begin_connection();
                    self.figures.latency.store(0, Relaxed);
                    self.note_connection(running);
                    self.note_losses(running);
                }
                Ok(Some(Item::EndOfStream)) => {
                    gst::info!(CAT, imp = self, "The stream has ended");
                    return Err(self.end(running));
                }
                Ok(None) => {
                    if let Some(buffer) = running.last.as_mut().and_then(Last::repeat) {
                        Figures::count(&self.figures.repeated);
                        return Ok(buffer);
                    }
                }
                Err(ReadError::Interrupted) => return Err(gst::FlowError::Flushing),
                // Downstream returns buffers on threads of its own: in PAUSED after any time.
                Err(error @ ReadError::Held { .. }) => gst::info!(CAT, imp = self, "{error}"),
                Err(error)
                    if error.is_exporter_gone()
                        && running.settings.on_disconnect == FrameshareSrcOnDisconnect::Eos =>
                {
                    gst::element_imp_warning!(
                        self,
                        gst::ResourceError::Read,
                        (
                            "The exporter of {} stopped without ending the stream: {error}; the stream ends \
                             here, as on-disconnect=eos asks",
                            running.endpoint
                        )
                    );
                    return Err(self.end(running));
                }
                Err(error) => {
                    self.note_losses(running);
                    running.reader = None;
                    self.post_error_message(errors::of_read(&error, &running.endpoint));
                    return Err(gst::FlowError::Error);
                }
            }
        }
    }

    /// Ends the stream: later calls of `create` return EOS too.
    fn end(&self, running: &mut Running) -> gst::FlowError {
        self.open(running);
        self.note_losses(running);
        // Disconnect now: a connected reader that takes no frames would block the exporter.
        running.reader = None;
        running.last = None;
        running.has_ended = true;
        gst::FlowError::Eos
    }

    fn take_frame(&self, running: &mut Running, frame: Frame) -> Result<gst::Buffer, gst::FlowError> {
        // The caps must name the memory of this frame, even if other memory was announced.
        let on_gpu = frame.is_on_gpu();
        if on_gpu != self.figures.on_gpu.load(Relaxed) {
            let caps = running.negotiated.refresh(&self.negotiated).caps.clone();
            caps.map_or(Ok(()), |caps| self.announce(running, &caps, on_gpu))?;
        }
        // The count comes from the exporter and may be any number.
        let lost_before = frame.lost_before().saturating_add(running.skips.take_missing());
        let is_last_credit = running.reader.as_ref().is_some_and(|reader| reader.held() >= reader.credit());
        #[cfg(test)]
        let is_last_credit = is_last_credit && !self.holds_everything.load(Relaxed);
        let negotiated = running.negotiated.refresh(&self.negotiated);
        let downstream = negotiated.downstream;
        if let Some(cuda) = &mut running.cuda {
            cuda.adopt(negotiated.cuda_stream.as_ref());
            #[cfg(test)]
            {
                cuda.releases_in_order = self.releases_in_order.load(Relaxed);
            }
        }
        // A stream without caps carries untyped bytes.
        let time = self.timestamps(running);
        let shape = running.shape.get_or_insert_default();
        let context = Context {
            shape,
            downstream,
            time,
            shows_kept: running.shows_kept,
            lost_before,
            latency: self.figures.latency.load(Relaxed),
            is_last_credit,
            held: &self.figures.held,
            copies: &self.figures.copied_downstream,
            copy_pool: &mut running.copy_pool,
            cuda: running.cuda.as_mut(),
            is_trusted: running.reader.as_ref().is_some_and(Reader::exporter_is_own_or_root),
            dropped: &self.figures.dropped_metas,
            budget: &running.budget,
        };
        let (mut buffer, way) = frames::to_buffer(frame, context).map_err(|error| {
            if let FrameError::OverBudget(error) = error {
                self.post_error_message(errors::of_budget(error, &running.endpoint));
                return gst::FlowError::Error;
            }
            gst::element_imp_error!(
                self,
                gst::StreamError::Format,
                ("Cannot use a frame of {}: {error}", running.endpoint)
            );
            gst::FlowError::Error
        })?;
        Figures::count(&self.figures.received);
        self.note_waits(running);
        self.report_way(running, &buffer, way, on_gpu);
        if std::mem::take(&mut running.is_discont) || lost_before > 0 {
            buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
        }
        if lost_before > 0 {
            self.note_losses(running);
            self.post_loss(running, &buffer);
        }
        Ok(buffer)
    }

    /// Keeps a frame that is about to be pushed, if it is to be repeated. A repeated unit of an
    /// encoded stream, or a repeated sound, would be wrong: only pictures are.
    fn keep_last(&self, running: &mut Running, buffer: &gst::Buffer) -> Option<Last> {
        let interval = running.settings.resend_last()?;
        let caps = running.negotiated.refresh(&self.negotiated).caps.as_ref();
        let is_picture = caps
            .and_then(|caps| caps.structure(0))
            .is_some_and(|media| media.name() == "video/x-raw" || media.name().starts_with("image/"));
        is_picture.then(|| Last::new(buffer, interval))
    }
}
