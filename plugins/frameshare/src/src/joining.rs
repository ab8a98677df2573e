// SPDX-License-Identifier: MIT OR Apache-2.0

//! The first frames of a connection, and of the time after a pause: their place in the running time
//! of a live source, and the units that it skips.

use super::{
    consumer,
    frames::Shape,
    imp::FrameshareSrc,
    log::CAT,
    running::Running,
    skips::{SKIPS_SILENTLY, Skipped},
};
use crate::{
    flags,
    times::{Consumer, First},
};
use frameshare::reader::{Frame, Reader};
use gst::{prelude::*, subclass::prelude::*};
use std::sync::atomic::Ordering::Relaxed;

/// Longest time in ns by which a unit without a decoding time can precede the key unit that it
/// follows: 16 frames at 30 per second.
const REORDERING: i128 = 533_333_333;
impl FrameshareSrc {
    /// Places the frames of a connection in the running time, by the first of them. Returns whether
    /// this frame is skipped.
    pub(super) fn skips(&self, running: &mut Running, frame: &Frame) -> bool {
        if running.live_time.is_settled() {
            return false;
        }
        let is_encoded = !running.shape.as_ref().is_some_and(Shape::is_raw_video);
        let descriptor = frame.descriptor();
        let is_of_pause = running.skips.is_of_pause(descriptor.published);
        let is_kept_unit = (frame.is_kept() && is_encoded) || is_of_pause;
        let is_delta = flags::from_word(descriptor.flags).contains(gst::BufferFlags::DELTA_UNIT);
        if !running.live_time.skips(is_kept_unit, is_delta) && running.live_time.is_start() {
            let clock = running.clock.unwrap_or_default();
            let now = clock.signed(frameshare::monotonic_ns());
            let latency = i128::from(self.figures.latency.load(Relaxed));
            let consumer = consumer::of(self.obj().upcast_ref());
            // No frame depends on a kept picture.
            running.shows_kept = consumer == Consumer::Other && self.has_media(running, "image/");
            let is_shown_now = frame.is_kept() && (!is_encoded || running.shows_kept);
            let time = descriptor.dts.or(descriptor.pts).map(|time| clock.signed(time));
            let time = time.map(|time| if is_shown_now { now - latency } else { time });
            let may_reorder = descriptor.dts.is_none() && self.has_media(running, "video/");
            let reordering = if may_reorder { REORDERING } else { 0 };
            let is_kept_unit = is_kept_unit && !is_shown_now;
            let first = First { time, reordering, latency, now, is_kept_unit, is_shown_now };
            gst::debug!(CAT, imp = self, "{consumer:?}, {first:?}");
            let segment = running.live_time.start(first, consumer);
            self.replace_segment(segment);
        }
        if !running.live_time.skips(is_kept_unit, is_delta) {
            running.skips.end();
            return false;
        }
        let (is_lost, follows) = running.skips.note(frame.lost_before());
        running.lost_earlier += u64::from(is_lost);
        match follows {
            Skipped::First => running.reader.iter().for_each(Reader::request_key_unit),
            Skipped::ForLong => gst::element_imp_warning!(
                self,
                gst::StreamError::Format,
                (
                    "No key unit has come from {} for {} s, and the pipeline cannot begin with the units \
                     before it: put recorders and viewers into pipelines of their own, or have the encoder \
                     send key units more often",
                    running.endpoint,
                    SKIPS_SILENTLY.as_secs()
                )
            ),
            Skipped::Further => {}
        }
        true
    }

    /// Returns whether the media type begins with this, and is none of raw video.
    fn has_media(&self, running: &mut Running, family: &str) -> bool {
        let caps = running.negotiated.refresh(&self.negotiated).caps.as_ref();
        let is_of =
            |caps: &gst::StructureRef| caps.name().starts_with(family) && caps.name() != "video/x-raw";
        caps.is_some_and(|caps| caps.structure(0).is_some_and(is_of))
    }
}
