// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pace of the publications: what happens to readers, and to frames after a wait for one.

use super::{
    kinds::Export,
    lateness::{Lateness, WAIT},
    stream::Stream,
};
use crate::times::Times;
use frameshare::exporter::{History, SlowReaders};
use std::time::{Duration, Instant};

/// The pace of the publications: the treatment of readers that the exporter was given, and how far
/// a wait for them has put the stream back. The exporter treats the readers.
#[derive(Default)]
pub(super) struct Pace {
    /// The treatment of slow and of joining readers that was last applied.
    applied: Option<(SlowReaders, History)>,
    lateness: Lateness,
    /// Time of the last publication.
    published: Option<Instant>,
}

impl Pace {
    /// Returns whether a decoder's surface is copied for readers that join later: the stream is
    /// slow, and the decoder may need its surface soon.
    pub(super) fn keeps_copy(&self, stream: &Stream) -> bool {
        let keeps = self.applied.is_some_and(|(_, history)| history != History::default());
        let may_copy = || stream.export == Export::Auto && !stream.has_device_layout();
        let is_slow = |last: Instant| last.elapsed() >= stream.history_pause;
        keeps && may_copy() && self.published.is_some_and(is_slow)
    }

    /// Returns the time after which a frame is for lossless readers only: when the wait for one,
    /// before this frame or for it, has made it later than usual by more than `max_lateness` ns,
    /// which is negative if there is no limit.
    pub(super) fn late_after(&mut self, max_lateness: i64, times: Times) -> Option<u64> {
        let limit = u64::try_from(max_lateness).ok()?;
        let (pts, now) = (times.pts?, frameshare::monotonic_ns());
        let late = i128::from(now) - i128::from(pts);
        let is_late = self.lateness.is_late(late, i128::from(limit));
        // A publication that takes no longer than `WAIT` is no wait.
        Some(if is_late { 0 } else { now.saturating_add(limit.max(WAIT.as_nanos() as u64)) })
    }

    /// Records a publication, and how long it took.
    pub(super) fn note_publication(&mut self, took: Duration) {
        self.lateness.note(took);
        self.published = Some(Instant::now());
    }

    /// Applies a treatment of slow and of joining readers. Returns whether it is a change.
    pub(super) fn apply(&mut self, stream: &Stream, slow: SlowReaders, joining: History) -> bool {
        let wanted = Some((slow, joining));
        let is_change = std::mem::replace(&mut self.applied, wanted) != wanted;
        if is_change {
            stream.exporter.set_slow_readers(slow);
            // It was checked when the stream was opened.
            let _ = stream.exporter.set_history(joining);
        }
        is_change
    }
}
