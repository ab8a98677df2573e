// SPDX-License-Identifier: MIT OR Apache-2.0

//! The pool with which NVIDIA's decoders and the `cuda*` elements write directly into GPU slots.
//!
//! They accept only the class GstCudaBufferPool, of which this is a subclass. It proposes one
//! stream for all its buffers, and each slot is wrapped once, while the layout stays. Unused
//! buffers are not kept: a slot returns to the exporter with its buffer, together with its wrapped
//! memory.

mod imp;

use super::SlotAllocator;
use glib::subclass::prelude::*;
use gst::prelude::*;
use gst_video::VideoInfo;
use std::sync::Arc;

glib::wrapper! {
    /// A `GstCudaBufferPool` whose buffers are slots.
    pub(crate) struct CudaPool(ObjectSubclass<imp::CudaPool>)
        @extends gst_cuda::BufferPool, gst::BufferPool, gst::Object;
}

/// Returns the layout of a frame's planes in a slot.
pub(crate) fn layout(info: &VideoInfo, context: &gst_cuda::Context) -> VideoInfo {
    gst_cuda::layout::of(info, context.texture_alignment()).unwrap_or_else(|| info.clone())
}

impl CudaPool {
    /// A pool for buffers of these caps, all written on `stream`. None if GStreamer refuses the
    /// configuration.
    pub(crate) fn new(
        slots: &Arc<SlotAllocator>,
        context: &gst_cuda::Context,
        stream: &gst_cuda::Stream,
        caps: &gst::Caps,
    ) -> Option<Self> {
        let pool: Self = glib::Object::new();
        gst_cuda::pool::set_context(&pool, context);
        pool.imp().settle(slots.clone(), context, stream);
        let mut config = pool.config();
        config.set_params(Some(caps), 0, 0, 0);
        config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
        pool.set_config(config).ok()?;
        Some(pool)
    }

    /// Size of each buffer in bytes.
    pub(crate) fn size(&self) -> u32 {
        self.config().params().map_or(0, |(_, size, ..)| size)
    }
}
