// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pace of the stream: what happens to slow lossless readers, and to frames after a wait.

use super::{
    imp::FrameshareSink,
    kinds::{self, Export},
    lateness::WAIT,
    log::CAT,
    stream::Stream,
};
use crate::{sync::lock, times::Times};
use frameshare::exporter::{History, SlowReaders};
use gst::{prelude::*, subclass::prelude::*};
use gst_base::prelude::*;
use std::time::{Duration, Instant};

impl FrameshareSink {
    /// Asks upstream whether it is live.
    pub(super) fn find_out_liveness(&self) {
        let mut query = gst::query::Latency::new();
        let pad = self.obj().static_pad("sink");
        let is_live = pad.is_some_and(|pad| pad.peer_query(&mut query)) && query.result().0;
        self.input().is_live = Some(is_live);
    }

    /// Applies the treatment of slow and of joining readers that suits upstream, its caps and the
    /// present properties.
    pub(super) fn set_pace(&self, stream: &Stream) {
        let (slow_readers, waits_for_connection) = {
            let settings = lock(&self.settings);
            (settings.slow_readers, settings.wait_for_connection)
        };
        let is_paced = self.obj().is_sync();
        let (is_live, is_raw_video) = {
            let input = self.input();
            (input.is_live == Some(true), input.info.is_some())
        };
        let treatment = match slow_readers {
            // A surface in place cannot wait: it is its decoder's.
            _ if stream.export == Export::InPlace || stream.has_device_layout() => SlowReaders::Wait,
            kinds::SlowReaders::Disconnect => SlowReaders::QueueThenDisconnect,
            kinds::SlowReaders::Auto if is_live => SlowReaders::QueueThenDisconnect,
            kinds::SlowReaders::Auto | kinds::SlowReaders::Wait if is_live || is_paced => {
                SlowReaders::QueueThenWait
            }
            // Upstream can wait, and no clock does not.
            kinds::SlowReaders::Auto | kinds::SlowReaders::Wait => SlowReaders::Wait,
        };
        // While the stream waits for a connection, a joining reader gets the next frame at once.
        let keeps = is_raw_video && !waits_for_connection;
        let kept = if keeps { stream.history } else { History::default() };
        let pace = Some((treatment, kept));
        if std::mem::replace(&mut self.input().pace, pace) != pace {
            gst::debug!(CAT, imp = self, "{treatment:?}, {kept:?} (live: {is_live}, sync: {is_paced})");
            stream.exporter.set_slow_readers(treatment);
            // It was checked when the stream was opened.
            let _ = stream.exporter.set_history(kept);
        }
    }

    /// Returns the time after which a frame is for lossless readers only: when the wait for one,
    /// before this frame or for it, has made it later than usual by more than `max-lateness`.
    pub(super) fn late_after(&self, times: Times) -> Option<u64> {
        let limit = u64::try_from(lock(&self.settings).max_lateness).ok()?;
        let (pts, now) = (times.pts?, frameshare::monotonic_ns());
        let late = i128::from(now) - i128::from(pts);
        let is_late = self.input().lateness.is_late(late, i128::from(limit));
        // A publication that takes no longer than `WAIT` is no wait.
        Some(if is_late { 0 } else { now.saturating_add(limit.max(WAIT.as_nanos() as u64)) })
    }

    /// Returns whether a decoder's surface is copied for readers that join later: the stream is
    /// slow, and the decoder may need its surface soon.
    pub(super) fn keeps_copy(&self, stream: &Stream) -> bool {
        let input = self.input();
        let keeps = input.pace.is_some_and(|(_, history)| history != History::default());
        let may_copy = stream.export == Export::Auto && !stream.has_device_layout();
        keeps && may_copy && input.published.is_some_and(|last| last.elapsed() >= stream.history_pause)
    }

    /// Records a publication, and how long it took.
    pub(super) fn note_publication(&self, took: Duration) {
        let mut input = self.input();
        input.lateness.note(took);
        input.published = Some(Instant::now());
    }
}
