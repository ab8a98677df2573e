// SPDX-License-Identifier: MIT OR Apache-2.0

//! Times of frames, on the clock that all processes share.

use super::imp::FrameshareSink;
use crate::{
    events,
    times::{Difference, Running, Timeline, Times},
};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;

/// The clocks are read one after the other: smaller differences are not sent.
const MOVED_NS: u64 = 1_000_000;

impl FrameshareSink {
    /// Converts times of upstream to the clock that all processes share.
    pub(super) fn times(
        &self,
        pts: Option<gst::ClockTime>,
        dts: Option<gst::ClockTime>,
        duration: Option<gst::ClockTime>,
    ) -> Times {
        let sink = self.obj();
        let segment = sink.segment();
        let Some(segment) = segment.downcast_ref::<gst::ClockTime>() else { return Times::default() };
        let running = Running::of(segment, pts, dts, duration);
        let offset = i128::from(sink.ts_offset());
        let delay = self.input().delay;
        let (difference, base) = match (self.clock.difference(), sink.base_time()) {
            (Some(difference), Some(base)) => (difference, i128::from(base.nseconds()) + offset + delay),
            _ => {
                let now = frameshare::monotonic_ns();
                let first = u64::try_from(running.pts.or(running.dts).unwrap_or(0)).unwrap_or(0);
                let first = gst::ClockTime::from_nseconds(first);
                let difference =
                    *self.input().clockless.get_or_insert_with(|| Difference::between(first, now));
                (difference, delay)
            }
        };
        running.published(difference, base)
    }

    /// Tells readers by how much frames come later than their times, if that has changed.
    pub(super) fn forward_latency(&self, times: Times) {
        let Some(pts) = times.pts else { return };
        let limit = self.obj().latency();
        let late = i128::from(frameshare::monotonic_ns()) - i128::from(pts);
        let changed = self.input().latency.note(late, limit.nseconds());
        if let Some(latency) = changed {
            self.send(events::encode_latency(latency));
        }
    }

    /// Sends readers the segment of the frame with these times, if it is not the last one sent, or
    /// has moved on the clock: by a pause, or because the pipeline's clock is another one.
    pub(super) fn forward_timeline(&self, times: Times) {
        let segment = self.obj().segment();
        let Some(segment) = segment.downcast_ref::<gst::ClockTime>() else { return };
        let timeline = Timeline::of(segment, times.origin);
        {
            let mut input = self.input();
            let is_same = |last: &Option<Timeline>| match (last, timeline) {
                (Some(last), Some(new)) => {
                    last.origin.abs_diff(new.origin) <= MOVED_NS && new.at(last.origin) == *last
                }
                (last, new) => last.is_none() && new.is_none(),
            };
            if is_same(&input.timeline) {
                return;
            }
            input.timeline = timeline;
        }
        if let Some(timeline) = timeline {
            self.send(events::encode_timeline(&timeline));
        }
    }
}
