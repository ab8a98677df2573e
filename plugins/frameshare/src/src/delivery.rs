// SPDX-License-Identifier: MIT OR Apache-2.0

//! Delivery: the items of the stream, as buffers and events.

use super::{
    consumer, errors,
    frames::{self, Context, FrameError, Shape},
    imp::FrameshareSrc,
    log::CAT,
    repeat::Last,
    running::Running,
    settings::FrameshareSrcOnDisconnect,
    stats::Figures,
    way::Way,
};
use crate::{
    flags,
    sync::lock,
    times::{self, Consumer, First, LiveTime, Timestamps},
};
use frameshare::{
    Interrupt,
    reader::{Frame, Item, ReadError, Reader},
};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// Longest time in ns by which a unit without a decoding time can precede the key unit that it
/// follows: 16 frames at 30 per second.
const REORDERING: i128 = 533_333_333;
/// Size in bytes of a frame whose copy costs less than its transfer.
const CHEAP: usize = 64 << 10;
/// Time without a key unit after which skipped units are reported.
const SKIPS_SILENTLY: Duration = Duration::from_secs(5);

/// Gives the last unit before the segment a duration until the segment begins, if it has none: it
/// is on display then.
fn last_until_segment(buffer: &mut gst::BufferRef, live_time: &LiveTime) {
    let left = buffer.pts().and_then(|pts| live_time.before_segment(pts));
    if let (Some(left), None) = (left, buffer.duration()) {
        buffer.set_duration(times::sum(left, gst::ClockTime::from_mseconds(1)));
    }
}

impl FrameshareSrc {
    /// Waits for the next frame and handles formats and events in front of it.
    pub(super) fn next_buffer(
        &self,
        running: &mut Running,
        interrupt: &Interrupt,
    ) -> Result<gst::Buffer, gst::FlowError> {
        if running.has_ended {
            return Err(gst::FlowError::Eos);
        }
        loop {
            if self.pause.take_switch(interrupt) {
                self.switch(running)?;
            }
            let item = match &mut running.reader {
                Some(reader) => reader.next(running.last.as_ref().map(Last::wait), interrupt),
                None => {
                    running.reader = Some(self.connect(running, interrupt)?);
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
                        last_until_segment(buffer.make_mut(), &running.live_time);
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
            let caps = lock(&self.negotiated).caps.clone();
            caps.map_or(Ok(()), |caps| self.announce(running, &caps, on_gpu))?;
        }
        // The count comes from the exporter and may be any number.
        let lost_before = frame.lost_before().saturating_add(std::mem::take(&mut running.skipped));
        let is_last_credit = running.reader.as_ref().is_some_and(|reader| reader.held() >= reader.credit());
        #[cfg(test)]
        let is_last_credit = is_last_credit && !self.holds_everything.load(Relaxed);
        let (downstream, cuda_stream) = {
            let negotiated = lock(&self.negotiated);
            (negotiated.downstream, negotiated.cuda_stream.clone())
        };
        if let Some(cuda) = &mut running.cuda {
            cuda.adopt(cuda_stream.as_ref());
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
        match way {
            Way::InPlace => {}
            Way::CopiedForCredit => Figures::count(&self.figures.copied_for_credit),
            Way::CopiedForLayout => Figures::count(&self.figures.copied_for_layout),
        }
        // In system memory the exporter may choose another layout.
        if way == Way::CopiedForLayout
            && !on_gpu
            && !std::mem::replace(&mut running.has_reported_layout, true)
        {
            running.reader.iter().for_each(Reader::report_layout_copies);
        }
        let is_cheap = way == Way::CopiedForCredit && buffer.size() < CHEAP;
        if way != Way::InPlace && !is_cheap && !running.reported.contains(&way) {
            running.reported.push(way);
            let credit = running.reader.as_ref().map_or(0, Reader::credit);
            self.post_copying(errors::of_copying(way, credit, running.settings.config.max_held));
        }
        let copied = self.figures.copied_downstream.load(Relaxed);
        if copied > 0 && !std::mem::replace(&mut running.has_reported_writer, true) {
            self.post_copying(errors::of_downstream_copies());
        }
        if std::mem::take(&mut running.is_discont) || lost_before > 0 {
            buffer.make_mut().set_flags(gst::BufferFlags::DISCONT);
        }
        if lost_before > 0 {
            self.note_losses(running);
            self.post_loss(&buffer);
        }
        Ok(buffer)
    }

    /// Posts a warning about the first copy for a reason.
    fn post_copying(&self, (why, remedy): (String, &str)) {
        gst::element_imp_warning!(
            self,
            gst::ResourceError::Settings,
            ("Frames are copied: {}; {}", why, remedy)
        );
    }

    /// Updates the loss counter: frames are lost in front of delivered frames and when an exporter
    /// dies.
    pub(super) fn note_losses(&self, running: &Running) {
        if let Some(reader) = &running.reader {
            self.figures.lost.store(running.lost_earlier + reader.stats().lost, Relaxed);
        }
    }

    /// Updates the figures of waits for frames. A switch to another stream starts them again.
    fn note_waits(&self, running: &Running) {
        if let Some(stats) = running.reader.as_ref().map(Reader::stats) {
            self.figures.spin_time.store(stats.spin_time.as_nanos() as u64, Relaxed);
            self.figures.spin_frames.store(stats.spin_frames, Relaxed);
            self.figures.gpu_wait_limited.store(stats.gpu_wait_limited, Relaxed);
        }
    }

    /// Posts a QoS message for frames lost before `buffer`.
    fn post_loss(&self, buffer: &gst::BufferRef) {
        let element = self.obj();
        // The counts come from the exporter and may be any number; GStreamer reserves u64::MAX for
        // "none".
        let count = |figure: &AtomicU64| figure.load(Relaxed).min(u64::MAX - 1);
        let (received, lost) = (count(&self.figures.received), count(&self.figures.lost));
        gst::debug!(CAT, imp = self, "{lost} frames lost so far, {received} received");
        let message = gst::message::Qos::builder(lock(&self.settings).is_live)
            .running_time(buffer.pts())
            .stream_time(buffer.pts())
            .timestamp(buffer.pts())
            .duration(buffer.duration())
            .stats(gst::format::Buffers::from_u64(received), gst::format::Buffers::from_u64(lost))
            .src(&*element)
            .build();
        let _ = element.post_message(message);
    }

    /// Returns the current conversion from the exporter's times to timestamps.
    pub(super) fn timestamps(&self, running: &Running) -> Timestamps {
        if !running.settings.is_live {
            return Timestamps::of_exporter(running.file_time.timeline());
        }
        running.clock.unwrap_or_default().ahead_by(running.live_time.lead())
    }

    /// Reads the clock for the times of an item. A base time that is another one than before means
    /// that the pipeline was paused.
    fn read_clock(&self, running: &mut Running) {
        if !running.settings.is_live {
            return;
        }
        let (difference, base) = (running.known_clock.difference(&self.clock), self.obj().base_time());
        let clock = Timestamps::new(difference.unwrap_or_default(), base.unwrap_or_default());
        if let Some(last) = running.clock.replace(clock).filter(|last| !last.has_base_of(&clock)) {
            let pause = clock.start() - last.start();
            let consumer = consumer::of(self.obj().upcast_ref());
            gst::debug!(CAT, imp = self, "{consumer:?} after a pause of {pause} ns");
            if !running.live_time.resume(pause, consumer) {
                (running.resumed, running.counts_skips) = (self.played.load(Relaxed), true);
                running.is_discont = true;
                if let Some(last) = &mut running.last {
                    last.wait_for_pause(pause);
                }
            }
        }
    }

    /// Places the frames of a connection in the running time, by the first of them. Returns whether
    /// this frame is skipped.
    fn skips(&self, running: &mut Running, frame: &Frame) -> bool {
        let is_encoded = !running.shape.as_ref().is_some_and(Shape::is_raw_video);
        let descriptor = frame.descriptor();
        let is_of_pause = descriptor.published < running.resumed;
        let is_kept_unit = (frame.is_kept() && is_encoded) || is_of_pause;
        let is_delta = flags::from_word(descriptor.flags).contains(gst::BufferFlags::DELTA_UNIT);
        if !running.live_time.skips(is_kept_unit, is_delta) && running.live_time.is_start() {
            let clock = running.clock.unwrap_or_default();
            let now = clock.signed(frameshare::monotonic_ns());
            let latency = i128::from(self.figures.latency.load(Relaxed));
            let consumer = consumer::of(self.obj().upcast_ref());
            // No frame depends on a kept picture.
            running.shows_kept = consumer == Consumer::Other && self.has_media("image/");
            let is_shown_now = frame.is_kept() && (!is_encoded || running.shows_kept);
            let time = descriptor.dts.or(descriptor.pts).map(|time| clock.signed(time));
            let time = time.map(|time| if is_shown_now { now - latency } else { time });
            let may_reorder = descriptor.dts.is_none() && self.has_media("video/");
            let reordering = if may_reorder { REORDERING } else { 0 };
            let is_kept_unit = is_kept_unit && !is_shown_now;
            let first = First { time, reordering, latency, now, is_kept_unit, is_shown_now };
            gst::debug!(CAT, imp = self, "{consumer:?}, {first:?}");
            let segment = running.live_time.start(first, consumer);
            self.replace_segment(segment);
        }
        let was_skipping = running.skips_since.is_some();
        if !running.live_time.skips(is_kept_unit, is_delta) {
            (running.skips_since, running.counts_skips) = (None, false);
            return false;
        }
        if running.counts_skips {
            let missing = frame.lost_before().saturating_add(1);
            running.skipped = running.skipped.saturating_add(missing);
            running.lost_earlier += 1;
        }
        let since = *running.skips_since.get_or_insert_with(Instant::now);
        if !was_skipping {
            lock(&self.key_unit_requests).clone().send();
        } else if since.elapsed() >= SKIPS_SILENTLY
            && !std::mem::replace(&mut running.has_reported_skips, true)
        {
            gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                (
                    "No key unit has come from {} for {} s, and the pipeline cannot begin with the units \
                     before it: put recorders and viewers into pipelines of their own, or have the encoder \
                     send key units more often",
                    running.endpoint,
                    SKIPS_SILENTLY.as_secs()
                )
            );
        }
        true
    }

    /// Returns whether the media type begins with this, and is none of raw video.
    fn has_media(&self, family: &str) -> bool {
        let caps = lock(&self.negotiated).caps.clone();
        let is_of =
            |caps: &gst::StructureRef| caps.name().starts_with(family) && caps.name() != "video/x-raw";
        caps.is_some_and(|caps| caps.structure(0).is_some_and(is_of))
    }

    /// Makes a segment that of this source. Returns whether there is one.
    fn replace_segment(&self, segment: Option<gst::FormattedSegment<gst::ClockTime>>) -> bool {
        let Some(segment) = segment else { return false };
        gst::debug!(CAT, imp = self, "{segment:?}");
        if let Err(error) = self.obj().new_segment(segment.upcast_ref()) {
            gst::warning!(CAT, imp = self, "{error}");
        }
        true
    }

    /// Makes the exporter's segment that of this source, if it is new, for a buffer or a gap with
    /// these times. Returns whether it did.
    pub(super) fn follow_timeline(
        &self,
        running: &mut Running,
        time: Option<u64>,
        duration: Option<u64>,
    ) -> bool {
        let is_live = running.settings.is_live;
        let segment = if is_live { None } else { running.file_time.follow(time, duration) };
        self.replace_segment(segment)
    }

    /// Keeps a frame that is about to be pushed, if it is to be repeated. A repeated unit of an
    /// encoded stream, or a repeated sound, would be wrong: only pictures are.
    fn keep_last(&self, running: &Running, buffer: &gst::Buffer) -> Option<Last> {
        let interval = running.settings.resend_last()?;
        let is_picture = lock(&self.negotiated).caps.as_ref().is_some_and(|caps| {
            caps.structure(0)
                .is_some_and(|caps| caps.name() == "video/x-raw" || caps.name().starts_with("image/"))
        });
        is_picture.then(|| Last::new(buffer, interval))
    }
}
