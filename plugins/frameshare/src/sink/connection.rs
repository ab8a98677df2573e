// SPDX-License-Identifier: MIT OR Apache-2.0

//! `wait-for-connection`: the wait for a reader, and the delay of the stream that it causes.
//!
//! Upstream is blocked while the sink waits, so that all frames after the wait are late by its
//! duration. A reader that has just joined would clip their times at its own start. The sink
//! therefore delays the stream: it adds the duration of the wait to the published times, and unless
//! `sync=false` is set it waits for them: a live upstream, too, catches up at full speed.

use super::{imp::FrameshareSink, stream::Stream};
use crate::{
    ffi::base_sink::{PacedSinkImpl, preroll},
    sync::lock,
};
use frameshare::Wait;
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;

/// Time in ns by which a frame is less late than the stream is delayed if its source did not wait.
const CAUGHT_UP_NS: i128 = 100_000_000;

impl FrameshareSink {
    /// Waits for a reader if `wait-for-connection` is set, and delays the stream by the same time.
    pub(super) fn wait_for_connection(
        &self,
        stream: &Stream,
        buffer: &gst::BufferRef,
    ) -> Result<(), gst::FlowError> {
        let is_wanted = || lock(&self.settings).wait_for_connection;
        if !is_wanted() || stream.exporter.reader_count() > 0 {
            return Ok(());
        }
        let begin = self.running_now();
        loop {
            stream.waiting.begin();
            // Checked after `begin`: a change from here on interrupts the wait.
            let waited = if is_wanted() { stream.exporter.wait_for_reader(Wait::Forever) } else { Ok(true) };
            match (stream.waiting.end(), waited) {
                (_, Ok(_)) => break,
                (true, Err(_)) => drop(self.obj().wait_preroll()?),
                (false, Err(_)) => {}
            }
        }
        self.delay_stream(self.running_now() - begin, buffer);
        // This wait was asked for.
        self.input().arrived = None;
        Ok(())
    }

    /// Ends the delay of a live stream whose source did not wait, as a camera that drops frames
    /// meanwhile: the next frame is less late than the stream is delayed.
    pub(super) fn end_delay(&self, buffer: &gst::BufferRef) {
        let delay = self.input().delay;
        // With sync=false a source that waited catches up at full speed.
        if delay == 0 || !self.obj().is_sync() || self.is_paced() {
            return;
        }
        let Some(pts) = self.times(buffer.pts(), buffer.dts(), buffer.duration()).pts else { return };
        let late = self.lateness(pts) + delay;
        if late + CAUGHT_UP_NS < delay {
            let mut input = self.input();
            (input.delay, input.is_discont) = (late.max(0), true);
        }
    }

    /// Delays the stream by `waited` ns, and by more if its next frame would still be late.
    fn delay_stream(&self, waited: i128, buffer: &gst::BufferRef) {
        if self.running_time_of_clock().is_none() && self.input().clockless.is_none() {
            return; // the next frame starts the timeline
        }
        let times = self.times(buffer.pts(), buffer.dts(), buffer.duration());
        let due = times.dts.into_iter().chain(times.pts).min();
        let late = due.map_or(0, |due| self.lateness(due));
        self.input().delay += waited.max(late).max(0);
    }

    /// Time in ns since a frame with this published time was due, with the latency of the pipeline.
    fn lateness(&self, published: u64) -> i128 {
        let due = i128::from(published) + i128::from(self.obj().latency().nseconds());
        i128::from(frameshare::monotonic_ns()) - due
    }

    /// Waits until a frame is due in the delayed stream; `GstBaseSink` has waited for its time
    /// without the delay.
    pub(super) fn wait_for_delay(&self, buffer: &gst::BufferRef) -> Result<(), gst::FlowError> {
        let delay = self.input().delay;
        let Some(delay) = u64::try_from(delay).ok().filter(|delay| *delay > 0) else { return Ok(()) };
        let segment = self.obj().segment();
        let time = buffer.pts().or(buffer.dts());
        let running = segment
            .downcast_ref::<gst::ClockTime>()
            .zip(time)
            .and_then(|(segment, time)| segment.to_running_time(time));
        let due = running.and_then(|running| running.checked_add(gst::ClockTime::from_nseconds(delay)));
        match due {
            // Returns at once with sync=false.
            Some(due) if self.is_paced() => self.obj().wait(due).0.map(drop),
            Some(due) => self.wait_for_clock(due, buffer),
            None => Ok(()),
        }
    }

    /// Waits for a running time, without the latency of the pipeline.
    fn wait_for_clock(&self, due: gst::ClockTime, buffer: &gst::BufferRef) -> Result<(), gst::FlowError> {
        while self.obj().wait_clock(due).0 == Err(gst::ClockError::Unscheduled) {
            preroll(self, buffer.upcast_ref())?;
        }
        Ok(())
    }

    /// A time in ns that stops while the pipeline is paused, if it has a clock.
    fn running_now(&self) -> i128 {
        self.running_time_of_clock().unwrap_or_else(|| frameshare::monotonic_ns().into())
    }

    fn running_time_of_clock(&self) -> Option<i128> {
        let (difference, base) = (self.clock.difference()?, self.obj().base_time()?);
        Some(difference.to_clock(frameshare::monotonic_ns()) - i128::from(base.nseconds()))
    }
}
