// SPDX-License-Identifier: MIT OR Apache-2.0

//! Conversion of upstream's times, with the present segment, base time and clock of the element.

use super::{imp::FrameshareSink, input::Input};
use crate::times::{Running, Times};
use gst::{FormattedSegment, prelude::*, subclass::prelude::*};
use gst_base::prelude::*;

impl FrameshareSink {
    /// The present segment, if it is one of times.
    pub(super) fn segment(&self) -> Option<FormattedSegment<gst::ClockTime>> {
        self.obj().segment().downcast().ok()
    }

    /// Converts the times of a buffer to the clock that all processes share.
    pub(super) fn times(&self, input: &mut Input, buffer: &gst::BufferRef) -> Times {
        self.times_in(self.segment().as_ref(), input, buffer.pts(), buffer.dts(), buffer.duration())
    }

    /// Converts times in this segment to the clock that all processes share.
    pub(super) fn times_in(
        &self,
        segment: Option<&FormattedSegment<gst::ClockTime>>,
        input: &mut Input,
        pts: Option<gst::ClockTime>,
        dts: Option<gst::ClockTime>,
        duration: Option<gst::ClockTime>,
    ) -> Times {
        let Some(segment) = segment else { return Times::default() };
        let (element, running) = (self.obj(), Running::of(segment, pts, dts, duration));
        input.timing.published(running, &self.clock, element.base_time(), element.ts_offset())
    }

    /// The running time in ns, if the pipeline has a clock and a base time.
    pub(super) fn running_time(&self, input: &mut Input) -> Option<i128> {
        input.timing.running_time(&self.clock, self.obj().base_time())
    }
}
