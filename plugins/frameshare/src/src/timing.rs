// SPDX-License-Identifier: MIT OR Apache-2.0

//! Times of frames, as timestamps of the pipeline, and the segment that they are in.

use super::{consumer, imp::FrameshareSrc, log::CAT, running::Running};
use crate::times::{self, LiveTime, Timestamps};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

/// Gives the last unit before the segment a duration until the segment begins, if it has none: it
/// is on display then.
pub(super) fn last_until_segment(buffer: &mut gst::BufferRef, live_time: &LiveTime) {
    let left = buffer.pts().and_then(|pts| live_time.before_segment(pts));
    if let (Some(left), None) = (left, buffer.duration()) {
        buffer.set_duration(times::sum(left, gst::ClockTime::from_mseconds(1)));
    }
}

impl FrameshareSrc {
    /// Reads the clock for the times of an item. A base time that is another one than before means
    /// that the pipeline was paused.
    pub(super) fn read_clock(&self, running: &mut Running) {
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
                running.skips.resume(self.played.load(Relaxed));
                running.is_discont = true;
                if let Some(last) = &mut running.last {
                    last.wait_for_pause(pause);
                }
            }
        }
    }

    /// Returns the current conversion from the exporter's times to timestamps.
    pub(super) fn timestamps(&self, running: &Running) -> Timestamps {
        if !running.settings.is_live {
            return Timestamps::of_exporter(running.file_time.timeline());
        }
        running.clock.unwrap_or_default().ahead_by(running.live_time.lead())
    }

    /// Makes a segment that of this source. Returns whether there is one.
    pub(super) fn replace_segment(&self, segment: Option<gst::FormattedSegment<gst::ClockTime>>) -> bool {
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
}
