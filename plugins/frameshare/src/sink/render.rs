// SPDX-License-Identifier: MIT OR Apache-2.0

//! The way of a frame: placed in a slot while it waits for its time, then published.

use super::{
    copy_stats::CopyReason,
    imp::FrameshareSink,
    log::CAT,
    placed::{PlaceError, Placed},
    stream::{Place, Stream},
};
use crate::sync::lock;
use frameshare::{
    Wait,
    exporter::{AcquireError, PublishError, Purpose},
};
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use std::{
    thread,
    time::{Duration, Instant},
};

/// The longest time between two polls that counts as a wait for readers.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl FrameshareSink {
    /// Copies a frame now, if it must be copied, while it waits for its time.
    pub(super) fn prepare_frame(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let Some(stream) = self.stream() else { return Err(gst::FlowError::Flushing) };
        // GstBaseSink prepares the preroll buffer twice.
        let again = |prepared: &(gst::Buffer, _)| prepared.0.as_ptr() == buffer.as_ptr();
        if lock(&self.input).prepared.as_ref().is_some_and(again) {
            return Ok(gst::FlowSuccess::Ok);
        }
        if self.input().is_live.is_none() {
            self.find_out_liveness(); // no caps have come
        }
        // Frames of a file wait for their time by design.
        let arrived = (self.input().is_live == Some(true)).then(frameshare::monotonic_ns);
        self.input().arrived = arrived;
        let prepared = match self.place(&stream, buffer) {
            tried @ (Ok(_) | Err(PlaceError::NoneFree(..))) => Some((buffer.clone(), tried)),
            // Other failures are repeated, and reported, when the frame is due.
            Err(_) => None,
        };
        let last = std::mem::replace(&mut lock(&self.input).prepared, prepared);
        drop(last);
        Ok(gst::FlowSuccess::Ok)
    }

    /// Publishes a frame that is due.
    pub(super) fn render_frame(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let Some(stream) = self.stream() else { return Err(gst::FlowError::Flushing) };
        // GstBaseSink passes buffers without caps; readers cannot interpret them.
        let has_caps = lock(&self.input).has_caps;
        let any_caps = lock(&self.settings).any_caps;
        if self.is_empty_frame(buffer) {
            return Ok(gst::FlowSuccess::Ok);
        }
        if !has_caps && !any_caps {
            gst::element_imp_error!(
                self,
                gst::CoreError::Negotiation,
                ("Upstream did not say what it sends: put a capsfilter or a typefind before framesharesink")
            );
            self.note_failure();
            return Err(gst::FlowError::NotNegotiated);
        }
        self.wait_for_connection(&stream, buffer)?;
        self.end_delay(buffer);
        self.wait_for_delay(buffer)?;
        self.set_pace(&stream);
        let unit = self.input().units.next(buffer);
        let place = || self.place(&stream, buffer);
        let mut placed = self.place_now(&stream, self.prepared(buffer), place)?;
        loop {
            // Converted again after a pause, which moved the base time.
            let times = self.times(buffer.pts(), buffer.dts(), buffer.duration());
            let (info, is_discont, arrived) = {
                let input = self.input();
                (input.info.clone(), input.is_discont, input.arrived)
            };
            self.forward_timeline(times);
            self.forward_latency(times);
            let (late_after, begin) = (self.late_after(times), Instant::now());
            match stream.publish(
                &placed,
                buffer,
                info.as_ref(),
                Place { times, arrived, is_discont, late_after, unit },
            ) {
                Ok(sequence) => {
                    self.input().is_discont = false;
                    self.note_publication(begin.elapsed());
                    self.warn_of_copies(&stream);
                    gst::trace!(CAT, imp = self, "{buffer:?} is frame {sequence}");
                    return Ok(gst::FlowSuccess::Ok);
                }
                Err(PublishError::Interrupted) => drop(self.obj().wait_preroll()?),
                Err(why @ (PublishError::NotForAll(_) | PublishError::WouldWait)) => {
                    gst::debug!(CAT, imp = self, "a frame is copied after all: {why}");
                    let reason = match why {
                        PublishError::WouldWait => CopyReason::ReaderWaits,
                        _ => CopyReason::ReaderCannot,
                    };
                    let place = || stream.place_for_all(buffer, info.as_ref(), reason);
                    placed = self.place_now(&stream, None, place)?;
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

    pub(super) fn place(&self, stream: &Stream, buffer: &gst::Buffer) -> Result<Placed, PlaceError> {
        let info = lock(&self.input).info.clone();
        let reason = if stream.decoder.is_changing() {
            Some(CopyReason::DecoderChanges)
        } else {
            self.keeps_copy(stream).then_some(CopyReason::History)
        };
        let placed = match reason {
            Some(reason) => stream.place_for_all(buffer, info.as_ref(), reason),
            None => stream.place(buffer, info.as_ref()),
        };
        stream.finish_change();
        placed
    }

    /// Returns the frame that `prepare` placed for this buffer, if it did.
    pub(super) fn prepared(&self, buffer: &gst::Buffer) -> Option<Result<Placed, PlaceError>> {
        let (of, placed) = lock(&self.input).prepared.take()?;
        (of.as_ptr() == buffer.as_ptr()).then_some(placed)
    }

    /// Places a frame that is due, with the result of `place` in `first` if there is one. Without a
    /// free slot, and without memory for another one, waits for one.
    pub(super) fn place_now(
        &self,
        stream: &Stream,
        first: Option<Result<Placed, PlaceError>>,
        place: impl Fn() -> Result<Placed, PlaceError>,
    ) -> Result<Placed, gst::FlowError> {
        match first.unwrap_or_else(&place) {
            Err(PlaceError::NoneFree(size, why)) => {
                stream.slots.want_slots(true);
                let placed = self.place_when_free(stream, size, why, place);
                stream.slots.want_slots(false);
                placed
            }
            Err(PlaceError::NotCopyable(CopyReason::TooManyHeld)) => self.place_when_returned(stream, place),
            tried => tried.map_err(|error| self.post_place_error(error)),
        }
    }

    /// Places a frame as soon as upstream has buffers to spare, which readers hold.
    fn place_when_returned(
        &self,
        stream: &Stream,
        place: impl Fn() -> Result<Placed, PlaceError>,
    ) -> Result<Placed, gst::FlowError> {
        let limit = lock(&self.settings).config.reader_timeout;
        let (mut last, mut waited) = (Instant::now(), Duration::ZERO);
        loop {
            // Nothing announces the end of a device's work.
            thread::sleep(Duration::from_millis(1));
            stream.exporter.reclaim();
            match place() {
                Err(PlaceError::NotCopyable(CopyReason::TooManyHeld)) => {}
                tried => return tried.map_err(|error| self.post_place_error(error)),
            }
            if stream.waiting.is_unlocked() {
                self.obj().wait_preroll()?;
                (last, waited) = (Instant::now(), Duration::ZERO);
            }
            // A longer pause is one of a stopped process, and readers may have been stopped, too.
            let now = Instant::now();
            waited += now.duration_since(std::mem::replace(&mut last, now)).min(LONGEST_PAUSE);
            if waited >= limit {
                if let Some((reader, why)) = stream.revoke_holder(limit) {
                    self.warn_of_lost_frames(&reader, &why);
                }
                waited = Duration::ZERO;
            }
        }
    }

    fn place_when_free(
        &self,
        stream: &Stream,
        mut size: u64,
        mut why: AcquireError,
        place: impl Fn() -> Result<Placed, PlaceError>,
    ) -> Result<Placed, gst::FlowError> {
        loop {
            match stream.exporter.acquire(size, Purpose::Reuse, Wait::Forever) {
                // The next attempt finds it.
                Ok(slot) => drop(slot),
                Err(AcquireError::Interrupted) => drop(self.obj().wait_preroll()?),
                // The first attempt may have failed for another reason.
                Err(AcquireError::Exhausted { .. }) => {
                    return Err(self.post_place_error(PlaceError::NoSlot(why)));
                }
                Err(error) => return Err(self.post_place_error(PlaceError::NoSlot(error))),
            }
            match place() {
                Err(PlaceError::NoneFree(next, error)) => (size, why) = (next, error),
                tried => return tried.map_err(|error| self.post_place_error(error)),
            }
        }
    }

    pub(super) fn forget_prepared(&self) {
        let prepared = lock(&self.input).prepared.take();
        drop(prepared);
    }

    fn post_place_error(&self, error: PlaceError) -> gst::FlowError {
        match error {
            PlaceError::NoneFree(_, error) | PlaceError::NoSlot(error) => gst::element_imp_error!(
                self,
                gst::ResourceError::NoSpaceLeft,
                ("There is no slot for the next frame: {}", error)
            ),
            PlaceError::BadBuffer(what) => {
                gst::element_imp_error!(self, gst::StreamError::Format, ("Upstream sent {}", what))
            }
            PlaceError::NotCopyable(reason) => gst::element_imp_error!(
                self,
                gst::StreamError::Format,
                (
                    "Devices alone know the layout of the frames, and one cannot be shared in place ({}): frames must be in \
                     one dma-buf each",
                    reason.name()
                )
            ),
            PlaceError::NotInPlace(reason) => gst::element_imp_error!(
                self,
                gst::ResourceError::Settings,
                (
                    "export=in-place is asked for, and a frame cannot be shared in place ({}): use export=auto",
                    reason.name()
                )
            ),
            PlaceError::Gpu(error) => gst::element_imp_error!(
                self,
                gst::ResourceError::Write,
                ("The frame could not be copied on the GPU: {}", error)
            ),
        }
        self.note_failure();
        gst::FlowError::Error
    }
}
