// SPDX-License-Identifier: MIT OR Apache-2.0

//! Statistics of the `stats` property.

use crate::meta::wire::Dropped;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
};

/// Counters, written by the streaming thread and by any thread that drops a frame, read by any
/// thread. The counters are independent of each other.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Frames that downstream holds in place.
    pub held: Arc<AtomicU32>,
    pub session: AtomicU64,
    pub exporter: AtomicU32,
    pub credit: AtomicU32,
    /// Time in ns by which the exporter's frames come later than their times.
    pub latency: AtomicU64,
    /// Frames are in CUDA memory.
    pub on_gpu: AtomicBool,
    pub received: AtomicU64,
    pub lost: AtomicU64,
    pub copied_for_credit: AtomicU64,
    pub copied_for_layout: AtomicU64,
    pub reconnections: AtomicU64,
    pub repeated: AtomicU64,
    /// Time of this element's readers in spins for frames, in ns.
    pub spin_time: AtomicU64,
    /// Frames that came during a spin.
    pub spin_frames: AtomicU64,
    /// Frames that were pushed when they were written, since enough streams waited.
    pub gpu_wait_limited: AtomicU64,
    /// Metas that were not added to buffers.
    pub dropped_metas: Dropped,
    /// Copies of frames in host memory that elements downstream made, to write for example.
    pub copied_downstream: Arc<AtomicU64>,
}

impl Figures {
    /// Increments a counter.
    pub fn count(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }

    /// Resets the counters for another connection of the element, except `held`: frames of the old
    /// connection may still be held.
    pub fn reset(&self) {
        for counter in [
            &self.session,
            &self.latency,
            &self.received,
            &self.lost,
            &self.copied_for_credit,
            &self.copied_for_layout,
            &self.reconnections,
            &self.repeated,
            &self.spin_time,
            &self.spin_frames,
            &self.gpu_wait_limited,
            &self.copied_downstream,
        ] {
            counter.store(0, Relaxed);
        }
        self.exporter.store(0, Relaxed);
        self.credit.store(0, Relaxed);
        self.on_gpu.store(false, Relaxed);
    }

    /// Returns the value of the property.
    pub fn structure(&self, policy: &str) -> gst::Structure {
        gst::Structure::builder("framesharesrc-stats")
            .field("policy", policy)
            .field("session", self.session.load(Relaxed))
            .field("exporter-pid", self.exporter.load(Relaxed))
            .field("memory", if self.on_gpu.load(Relaxed) { "cuda" } else { "system" })
            .field("credit", self.credit.load(Relaxed))
            .field("held", self.held.load(Relaxed))
            .field("received", self.received.load(Relaxed))
            .field("lost", self.lost.load(Relaxed))
            .field("copied-for-credit", self.copied_for_credit.load(Relaxed))
            .field("copied-for-layout", self.copied_for_layout.load(Relaxed))
            .field("reconnections", self.reconnections.load(Relaxed))
            .field("copied-downstream", self.copied_downstream.load(Relaxed))
            .field("dropped-metas", self.dropped_metas.count())
            .field("repeated", self.repeated.load(Relaxed))
            .field("spin-time", self.spin_time.load(Relaxed))
            .field("spin-frames", self.spin_frames.load(Relaxed))
            .field("gpu-wait-limited", self.gpu_wait_limited.load(Relaxed))
            .build()
    }
}
