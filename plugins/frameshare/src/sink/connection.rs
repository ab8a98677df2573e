// SPDX-License-Identifier: MIT OR Apache-2.0

//! `wait-for-connection`: the wait for a reader, and the delay of the stream that it causes.
//!
//! Upstream is blocked while the sink waits, so that all frames after the wait are late by its
//! duration. A reader that has just joined would clip their times at its own start. The sink
//! therefore delays the stream: it adds the duration of the wait to the published times, and unless
//! `sync=false` is set it waits for them: a live upstream, too, catches up at full speed.

use super::{imp::FrameshareSink, input::Input};
use crate::ffi::base_sink::{PacedSinkImpl, preroll};
use frameshare::Wait;
use gst::subclass::prelude::*;
use gst_base::prelude::*;

/// Time in ns by which a frame is less late than the stream is delayed if its source did not wait.
const CAUGHT_UP_NS: i128 = 100_000_000;

impl FrameshareSink {
    /// Waits for a reader if `wait-for-connection` is set, and delays the stream by the same time.
    pub(super) fn wait_for_connection(
        &self,
        input: &mut Input,
        buffer: &gst::Buffer,
    ) -> Result<(), gst::FlowError> {
        let is_wanted = |input: &mut Input| input.settings.refresh(&self.settings).wait_for_connection;
        if !is_wanted(input) || input.stream.exporter.reader_count() > 0 {
            return Ok(());
        }
        let begin = self.running_now(input);
        loop {
            preroll(self, buffer.upcast_ref())?;
            let stream = input.stream.clone();
            let waited = self.wait_for(&stream, true, || {
                // Checked after the begin of the wait: a change from here on interrupts it.
                if is_wanted(input) { stream.exporter.wait_for_reader(Wait::Forever) } else { Ok(true) }
            });
            if waited.is_ok() {
                break;
            }
        }
        let waited = self.running_now(input) - begin;
        self.delay_stream(input, waited, buffer);
        // This wait was asked for.
        self.arrival.forget();
        Ok(())
    }

    /// Ends the delay of a live stream whose source did not wait, as a camera that drops frames
    /// meanwhile: the next frame is less late than the stream is delayed.
    pub(super) fn end_delay(&self, input: &mut Input, buffer: &gst::BufferRef) {
        let delay = input.timing.delay();
        // With sync=false a source that waited catches up at full speed.
        if delay == 0 || !self.obj().is_sync() || self.is_paced() {
            return;
        }
        let Some(pts) = self.times(input, buffer).pts else { return };
        let late = self.lateness(pts) + delay;
        if late + CAUGHT_UP_NS < delay {
            input.timing.end_delay(late.max(0));
            input.is_discont = true;
        }
    }

    /// Delays the stream by `waited` ns, and by more if its next frame would still be late.
    fn delay_stream(&self, input: &mut Input, waited: i128, buffer: &gst::BufferRef) {
        if self.running_time(input).is_none() && !input.timing.has_started_without_clock() {
            return; // the next frame starts the timeline
        }
        let times = self.times(input, buffer);
        let due = times.dts.into_iter().chain(times.pts).min();
        let late = due.map_or(0, |due| self.lateness(due));
        input.timing.delay_by(waited.max(late).max(0));
    }

    /// Time in ns since a frame with this published time was due, with the latency of the pipeline.
    fn lateness(&self, published: u64) -> i128 {
        let due = i128::from(published) + i128::from(self.obj().latency().nseconds());
        i128::from(frameshare::monotonic_ns()) - due
    }

    /// Waits until a frame is due in the delayed stream; `GstBaseSink` has waited for its time
    /// without the delay.
    pub(super) fn wait_for_delay(
        &self,
        input: &Input,
        buffer: &gst::BufferRef,
    ) -> Result<(), gst::FlowError> {
        let Some(delay) = u64::try_from(input.timing.delay()).ok().filter(|delay| *delay > 0) else {
            return Ok(());
        };
        let time = buffer.pts().or(buffer.dts());
        let running = self.segment().zip(time).and_then(|(segment, time)| segment.to_running_time(time));
        let due = running.and_then(|running| running.checked_add(gst::ClockTime::from_nseconds(delay)));
        match due {
            Some(due) => {
                self.wait_for_clock(if self.is_paced() { self.rendered_at(due) } else { due }, buffer)
            }
            None => Ok(()),
        }
    }

    /// Returns the time in the running time at which a paced sink takes a frame that is due then,
    /// as `GstBaseSink` computes it.
    fn rendered_at(&self, due: gst::ClockTime) -> gst::ClockTime {
        let element = self.obj();
        let late = i128::from(element.latency().nseconds()) + i128::from(element.ts_offset());
        let time = i128::from(due.nseconds()) + late - i128::from(element.render_delay().nseconds());
        gst::ClockTime::from_nseconds(u64::try_from(time.max(0)).unwrap_or(u64::MAX - 1))
    }

    /// Waits for a running time; returns at once with `sync=false`. `gst_base_sink_wait` would not
    /// complete a pause that begins meanwhile.
    fn wait_for_clock(&self, due: gst::ClockTime, buffer: &gst::BufferRef) -> Result<(), gst::FlowError> {
        while self.obj().wait_clock(due).0 == Err(gst::ClockError::Unscheduled) {
            preroll(self, buffer.upcast_ref())?;
        }
        Ok(())
    }

    /// A time in ns that stops while the pipeline is paused, if it has a clock.
    fn running_now(&self, input: &mut Input) -> i128 {
        self.running_time(input).unwrap_or_else(|| frameshare::monotonic_ns().into())
    }
}
