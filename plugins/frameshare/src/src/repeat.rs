// SPDX-License-Identifier: MIT OR Apache-2.0

//! `resend-last`: the last frame, pushed again while no other comes.
//!
//! For encoders, muxers and servers that need a steady stream. A repetition shares the memory of
//! the frame, whose lease therefore lasts until the next frame arrives. Its meta has the frame's
//! numbers, and counts the repetitions. Its time is the frame's, plus the time since it was pushed.

use crate::meta::FrameshareMeta;
use std::time::{Duration, Instant};

/// The last frame.
pub(super) struct Last {
    buffer: gst::Buffer,
    pushed: Instant,
    /// Time between two repetitions.
    interval: Duration,
    repeated: u32,
}

impl Last {
    /// Keeps a frame that is about to be pushed.
    pub fn new(buffer: &gst::Buffer, interval: Duration) -> Self {
        Self { buffer: buffer.copy(), pushed: Instant::now(), interval, repeated: 0 }
    }

    /// Returns the time until the next repetition.
    pub fn wait(&self) -> Duration {
        let due = self.interval.saturating_mul(self.repeated + 1);
        due.saturating_sub(self.pushed.elapsed())
    }

    /// Moves the time of the next repetition by a pause of the pipeline, in ns, in which no time
    /// has passed.
    pub fn wait_for_pause(&mut self, pause: i128) {
        self.pushed += Duration::from_nanos(u64::try_from(pause).unwrap_or(0));
    }

    /// Returns the frame again, if it is due.
    pub fn repeat(&mut self) -> Option<gst::Buffer> {
        if !self.wait().is_zero() {
            return None;
        }
        let elapsed = self.pushed.elapsed();
        // After a pause, one repetition takes the place of those that were missed.
        let intervals = elapsed.as_nanos() / self.interval.as_nanos().max(1);
        self.repeated = u32::try_from(intervals).unwrap_or(u32::MAX - 1).min(u32::MAX - 1);
        if let Some(mut meta) = self.buffer.make_mut().meta_mut::<FrameshareMeta>() {
            meta.repeat();
        }
        let mut again = self.buffer.copy();
        let elapsed = u64::try_from(elapsed.as_nanos()).ok().map(gst::ClockTime::from_nseconds);
        let content = again.make_mut();
        content.set_pts(content.pts().zip(elapsed).and_then(|(pts, elapsed)| pts.checked_add(elapsed)));
        content.set_dts(None);
        content.unset_flags(gst::BufferFlags::DISCONT);
        Some(again)
    }
}
