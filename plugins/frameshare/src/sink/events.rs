// SPDX-License-Identifier: MIT OR Apache-2.0

//! In-band events of the sink: upstream's, and those about the times of frames.

use super::{imp::FrameshareSink, input::Input, log::CAT, stream::Stream};
use crate::{
    events::{self, Gap},
    times::{Timeline, Times},
};
use gst::{FormattedSegment, subclass::prelude::*};
use gst_base::prelude::*;

impl FrameshareSink {
    /// Sends an event to readers, if they can use it. Called in order with frames.
    pub(super) fn forward(&self, event: &gst::EventRef) {
        match events::encode(event) {
            Ok(None) => {}
            Ok(Some(event)) => {
                self.input.with(|input| {
                    let Some(forgotten) = input.announced.note(&event) else { return };
                    self.send(&input.stream, event);
                    forgotten.into_iter().for_each(|kind| self.send(&input.stream, events::forget(kind)));
                });
            }
            Err(error) => gst::warning!(CAT, imp = self, "an event stays here: {error}: {event:?}"),
        }
    }

    /// Sends a gap when it is due.
    pub(super) fn forward_gap(&self, input: &mut Input, gap: &gst::event::Gap) {
        let (start, duration) = gap.get();
        let segment = self.segment();
        let times = self.times_in(segment.as_ref(), input, Some(start), None, duration);
        self.forward_timeline(input, segment.as_ref(), times);
        if let Some(pts) = times.pts {
            let gap = Gap { pts, duration: times.duration, flags: gap.gap_flags().bits() };
            self.send(&input.stream, events::encode_gap(gap));
        }
    }

    pub(super) fn send(&self, stream: &Stream, event: frameshare::Event) {
        gst::debug!(CAT, imp = self, "event of kind {} and {} bytes", event.kind, event.payload.len());
        if let Err(error) = stream.exporter.send_event(event) {
            gst::warning!(CAT, imp = self, "an event stays here: {error}");
        }
    }

    /// Tells readers by how much frames come later than their times, if that has changed.
    pub(super) fn forward_latency(&self, input: &mut Input, times: Times) {
        let Some(pts) = times.pts else { return };
        let late = || i128::from(frameshare::monotonic_ns()) - i128::from(pts);
        let changed = input.announced.note_lateness(self.obj().latency().nseconds(), late);
        if let Some(latency) = changed {
            self.send(&input.stream, events::encode_latency(latency));
        }
    }

    /// Sends readers the segment of the frame with these times, if it is not the last one sent, or
    /// has moved on the clock: by a pause, or because the pipeline's clock is another one.
    pub(super) fn forward_timeline(
        &self,
        input: &mut Input,
        segment: Option<&FormattedSegment<gst::ClockTime>>,
        times: Times,
    ) {
        let Some(segment) = segment else { return };
        let timeline = Timeline::of(segment, times.origin);
        if input.announced.note_timeline(timeline)
            && let Some(timeline) = timeline
        {
            self.send(&input.stream, events::encode_timeline(&timeline));
        }
    }
}
