// SPDX-License-Identifier: MIT OR Apache-2.0

//! Times of frames, on the clock that all processes share.

use super::{imp::FrameshareSink, stream::Times};
use crate::time::Difference;
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;

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
        let running = |time: gst::ClockTime| match segment.to_running_time_full(time)? {
            gst::Signed::Positive(time) => Some(i128::from(time.nseconds())),
            gst::Signed::Negative(time) => Some(-i128::from(time.nseconds())),
        };
        // In reverse playback a frame's presentation starts at its end.
        let shown = match duration {
            Some(duration) if segment.rate() < 0.0 => pts.map(|pts| pts + duration),
            _ => pts,
        };
        let (pts, dts) = (shown.and_then(running), dts.and_then(running));
        let late = i128::from(sink.latency().nseconds()) + i128::from(sink.ts_offset());
        let delay = self.input().delay;
        let (difference, base) = match (self.clock.difference(), sink.base_time()) {
            (Some(difference), Some(base)) => (difference, i128::from(base.nseconds()) + late + delay),
            _ => {
                let now = frameshare::monotonic_ns();
                let first = u64::try_from(pts.or(dts).unwrap_or(0)).unwrap_or(0);
                let first = gst::ClockTime::from_nseconds(first);
                let difference =
                    *self.input().clockless.get_or_insert_with(|| Difference::between(first, now));
                (difference, delay)
            }
        };
        let rate = segment.rate().abs();
        Times {
            pts: pts.map(|time| difference.to_monotonic(time + base)),
            dts: dts.map(|time| difference.to_monotonic(time + base)),
            duration: duration.map(|duration| (duration.nseconds() as f64 / rate) as u64),
        }
    }
}
