// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pool with which upstream writes directly into the exporter's slots.
//!
//! It grows on demand and never blocks upstream: without a free slot it hands out private memory,
//! which the sink copies. Slots belong to the exporter. A buffer borrows one, and returns it when
//! its memory is freed; that happens at once if the memory was shared (`GstBufferPool` does not
//! take such buffers back), and when the pool is stopped or trimmed for the others.

pub(crate) mod cuda;
mod imp;
mod slot_allocator;

pub(crate) use slot_allocator::SlotAllocator;

use glib::subclass::prelude::*;
use gst::prelude::*;
use std::sync::{Arc, LazyLock};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new("frameshare-pool", gst::DebugColorFlags::empty(), Some("Pools of shared frames"))
});

/// The layout of raw video.
pub(crate) fn video_info(caps: &gst::CapsRef) -> Option<gst_video::VideoInfo> {
    // For other caps GStreamer logs an error.
    let is_raw = caps.structure(0).is_some_and(|structure| structure.name() == "video/x-raw");
    is_raw.then(|| gst_video::VideoInfo::from_caps(caps).ok()).flatten()
}

glib::wrapper! {
    /// A `GstBufferPool` whose buffers are slots.
    pub(crate) struct HostPool(ObjectSubclass<imp::HostPool>) @extends gst::BufferPool, gst::Object;
}

impl HostPool {
    /// A pool for buffers of these caps and at least this size, with a video meta on each if the
    /// caps are of raw video; upstream may configure it otherwise. None if GStreamer refuses the
    /// configuration.
    pub(crate) fn new(slots: &Arc<SlotAllocator>, caps: &gst::Caps, size: u32, video: bool) -> Option<Self> {
        let pool: Self = glib::Object::new();
        pool.imp().settle(slots.clone());
        slots.add(&pool);
        let mut config = pool.config();
        config.set_params(Some(caps), size, 0, 0);
        if video {
            config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
        }
        pool.set_config(config).ok()?;
        Some(pool)
    }

    /// Frees unused buffers.
    fn trim(&self) {
        self.imp().trim();
    }
}
