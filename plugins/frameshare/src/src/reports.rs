// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reports on delivered frames: figures, messages about losses, and warnings about copies.

use super::{errors, imp::FrameshareSrc, log::CAT, running::Running, stats::Figures, way::Way};
use frameshare::reader::Reader;
use gst::{prelude::*, subclass::prelude::*};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Size in bytes of a frame whose copy costs less than its transfer.
const CHEAP: usize = 64 << 10;
impl FrameshareSrc {
    /// Updates the loss counter: frames are lost in front of delivered frames and when an exporter
    /// dies.
    pub(super) fn note_losses(&self, running: &Running) {
        if let Some(reader) = &running.reader {
            self.figures.lost.store(running.lost_earlier + reader.stats().lost, Relaxed);
        }
    }

    /// Updates the figures of waits for frames. A switch to another stream starts them again.
    pub(super) fn note_waits(&self, running: &Running) {
        if let Some(stats) = running.reader.as_ref().map(Reader::stats) {
            self.figures.spin_time.store(stats.spin_time.as_nanos() as u64, Relaxed);
            self.figures.spin_frames.store(stats.spin_frames, Relaxed);
            self.figures.gpu_wait_limited.store(stats.gpu_wait_limited, Relaxed);
        }
    }

    /// Posts a QoS message for frames lost before `buffer`.
    pub(super) fn post_loss(&self, running: &Running, buffer: &gst::BufferRef) {
        let element = self.obj();
        // The counts come from the exporter and may be any number; GStreamer reserves u64::MAX for
        // "none".
        let count = |figure: &AtomicU64| figure.load(Relaxed).min(u64::MAX - 1);
        let (received, lost) = (count(&self.figures.received), count(&self.figures.lost));
        gst::debug!(CAT, imp = self, "{lost} frames lost so far, {received} received");
        let message = gst::message::Qos::builder(running.settings.is_live)
            .running_time(buffer.pts())
            .stream_time(buffer.pts())
            .timestamp(buffer.pts())
            .duration(buffer.duration())
            .stats(gst::format::Buffers::from_u64(received), gst::format::Buffers::from_u64(lost))
            .src(&*element)
            .build();
        let _ = element.post_message(message);
    }

    /// Counts a frame by its delivery mode, and reports copies: to the exporter, and once each as a
    /// warning.
    pub(super) fn report_way(&self, running: &mut Running, buffer: &gst::BufferRef, way: Way, on_gpu: bool) {
        match way {
            Way::InPlace => {}
            Way::CopiedForCredit => Figures::count(&self.figures.copied_for_credit),
            Way::CopiedForLayout => Figures::count(&self.figures.copied_for_layout),
        }
        // In system memory the exporter may choose another layout.
        if way == Way::CopiedForLayout && !on_gpu && !std::mem::replace(&mut running.reported.layout, true) {
            running.reader.iter().for_each(Reader::report_layout_copies);
        }
        let is_cheap = way == Way::CopiedForCredit && buffer.size() < CHEAP;
        if way != Way::InPlace && !is_cheap && !running.reported.ways.contains(&way) {
            running.reported.ways.push(way);
            let credit = running.reader.as_ref().map_or(0, Reader::credit);
            self.post_copying(errors::of_copying(way, credit, running.settings.config.max_held));
        }
        let copied = self.figures.copied_downstream.load(Relaxed);
        if copied > 0 && !std::mem::replace(&mut running.reported.writer, true) {
            self.post_copying(errors::of_downstream_copies());
        }
    }

    /// Posts a warning about the first copy for a reason.
    fn post_copying(&self, (why, remedy): (String, &str)) {
        gst::element_imp_warning!(
            self,
            gst::ResourceError::Settings,
            ("Frames are copied: {}; {}", why, remedy)
        );
    }
}
