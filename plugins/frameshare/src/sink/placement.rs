// SPDX-License-Identifier: MIT OR Apache-2.0

//! Placement of a frame in memory that readers can map, and the waits for that memory.

use super::{
    copy_stats::CopyReason,
    imp::FrameshareSink,
    input::Input,
    placed::{PlaceError, Placed},
};
use crate::ffi::base_sink::preroll;
use frameshare::{
    Wait,
    exporter::{AcquireError, Purpose},
};
use gst::subclass::prelude::*;
use std::{
    thread,
    time::{Duration, Instant},
};

/// The longest time between two polls that counts as a wait for readers.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

impl Input {
    /// Finds the slot of a buffer, or copies its frame into one.
    pub(super) fn place(&self, buffer: &gst::Buffer) -> Result<Placed, PlaceError> {
        let (stream, info) = (&self.stream, self.media.info());
        let reason = if stream.decoder.is_changing() {
            Some(CopyReason::DecoderChanges)
        } else {
            self.pace.keeps_copy(stream).then_some(CopyReason::History)
        };
        let placed = match reason {
            Some(reason) => stream.place_for_all(buffer, info, reason),
            None => stream.place(buffer, info),
        };
        stream.finish_change();
        placed
    }
}

impl FrameshareSink {
    /// Places a frame that is due, with the result of `place` in `first` if there is one. Without a
    /// free slot, and without memory for another one, waits for one.
    pub(super) fn place_now(
        &self,
        input: &Input,
        buffer: &gst::BufferRef,
        first: Option<Result<Placed, PlaceError>>,
        place: impl Fn() -> Result<Placed, PlaceError>,
    ) -> Result<Placed, gst::FlowError> {
        match first.unwrap_or_else(&place) {
            Err(PlaceError::NoneFree(size, why)) => {
                input.stream.slots.want_slots(true);
                let placed = self.place_when_free(input, buffer, size, why, place);
                input.stream.slots.want_slots(false);
                placed
            }
            Err(PlaceError::NotCopyable(CopyReason::TooManyHeld)) => {
                self.place_when_returned(input, buffer, place)
            }
            tried => tried.map_err(|error| self.post_place_error(error)),
        }
    }

    /// Places a frame as soon as upstream has buffers to spare, which readers hold.
    fn place_when_returned(
        &self,
        input: &Input,
        buffer: &gst::BufferRef,
        place: impl Fn() -> Result<Placed, PlaceError>,
    ) -> Result<Placed, gst::FlowError> {
        let (stream, limit) = (&input.stream, input.settings.config.reader_timeout);
        let (mut last, mut waited) = (Instant::now(), Duration::ZERO);
        loop {
            let before = Instant::now();
            preroll(self, buffer.upcast_ref())?;
            if before.elapsed() >= LONGEST_PAUSE {
                // The element was paused.
                (last, waited) = (Instant::now(), Duration::ZERO);
            }
            // Nothing announces the end of a device's work.
            self.wait(stream, || thread::sleep(Duration::from_millis(1)));
            stream.exporter.reclaim();
            match place() {
                Err(PlaceError::NotCopyable(CopyReason::TooManyHeld)) => {}
                tried => return tried.map_err(|error| self.post_place_error(error)),
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
        input: &Input,
        buffer: &gst::BufferRef,
        mut size: u64,
        mut why: AcquireError,
        place: impl Fn() -> Result<Placed, PlaceError>,
    ) -> Result<Placed, gst::FlowError> {
        let exporter = &input.stream.exporter;
        loop {
            preroll(self, buffer.upcast_ref())?;
            match self.wait(&input.stream, || exporter.acquire(size, Purpose::Reuse, Wait::Forever)) {
                // The next attempt finds it.
                Ok(slot) => drop(slot),
                Err(AcquireError::Interrupted) => {}
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

    /// Drops the frame that `prepare` placed.
    pub(super) fn forget_prepared(&self) {
        let prepared = self.input.edit(|input| input.prepared.take());
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
