// SPDX-License-Identifier: MIT OR Apache-2.0

//! Handling of in-band events.

use super::{imp::FrameshareSrc, log::CAT, running::Running};
use crate::{
    events::{self, EventError, Gap, Incoming},
    meta::budget::OverBudget,
};
use gst::subclass::prelude::*;
use std::sync::atomic::Ordering::Relaxed;

impl FrameshareSrc {
    pub(super) fn take_event(
        &self,
        running: &mut Running,
        event: &frameshare::Event,
    ) -> Result<(), OverBudget> {
        let event = match events::decode(event, &running.budget) {
            Ok(Some(Incoming::StreamStart(start))) => {
                self.take_stream_start(running, start);
                return Ok(());
            }
            Ok(Some(Incoming::Gap(gap))) => {
                running.opening.lacks_segment |= self.follow_timeline(running, Some(gap.pts), gap.duration);
                let Some(gap) = self.gap(running, &gap) else { return Ok(()) };
                if self.has_caps(running) {
                    self.open(running);
                }
                gap
            }
            Ok(Some(Incoming::Timeline(timeline))) => {
                running.file_time.set(timeline);
                return Ok(());
            }
            Ok(Some(Incoming::Latency(latency))) => {
                if self.figures.latency.swap(latency, Relaxed) != latency {
                    self.post_latency();
                }
                return Ok(());
            }
            Ok(Some(Incoming::Event(event))) => event,
            Ok(None) => {
                gst::debug!(CAT, imp = self, "Ignoring an event of kind {}", event.kind);
                return Ok(());
            }
            Err(EventError::OverBudget(error)) => return Err(error),
            Err(error) => {
                gst::error!(CAT, imp = self, "Dropping an event of the exporter: {error}");
                return Ok(());
            }
        };
        if self.has_caps(running) && !running.opening.is_pending() {
            self.push_now(event);
        } else {
            running.opening.hold(event);
        }
        Ok(())
    }

    /// Converts the times of a gap; returns none for a gap that ended before the pipeline started,
    /// or whose time has passed in a pause.
    fn gap(&self, running: &Running, gap: &Gap) -> Option<gst::Event> {
        let (pts, duration) = self.timestamps(running).of_gap(gap.pts, gap.duration)?;
        if running.settings.is_live && running.live_time.has_passed(pts) {
            return None;
        }
        Some(
            gst::event::Gap::builder(pts)
                .duration(duration)
                .gap_flags(gst::GapFlags::from_bits_truncate(gap.flags))
                .build(),
        )
    }
}
