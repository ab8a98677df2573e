//! The pool that lets NVIDIA's decoders and the `cuda*` elements write straight into slots on the GPU.
//!
//! They take no other class of pool than GstCudaBufferPool, of which this is one. It proposes one stream for all its
//! buffers, and each slot is wrapped once, as long as the layout stays. Unused buffers are not kept: a slot goes back to
//! the exporter with its buffer, and with it the memory that it is wrapped as.

mod imp;

use super::Home;
use glib::subclass::prelude::*;
use gst::prelude::*;
use gst_video::VideoInfo;
use std::sync::Arc;

glib::wrapper! {
    /// A `GstCudaBufferPool` whose buffers lie in slots.
    pub(crate) struct CudaPool(ObjectSubclass<imp::CudaPool>) @extends gst_cuda::BufferPool, gst::BufferPool, gst::Object;
}

/// Where the planes of a picture lie in a slot.
pub(crate) fn layout(info: &VideoInfo, context: &gst_cuda::Context) -> VideoInfo {
    gst_cuda::layout::of(info, context.texture_alignment()).unwrap_or_else(|| info.clone())
}

impl CudaPool {
    /// A pool for buffers of these caps, all written on `stream`. None where GStreamer refuses the configuration.
    pub(crate) fn new(
        home: &Arc<Home>,
        context: &gst_cuda::Context,
        stream: &gst_cuda::Stream,
        caps: &gst::Caps,
    ) -> Option<Self> {
        let pool: Self = glib::Object::new();
        gst_cuda::pool::set_context(&pool, context);
        pool.imp().settle(home.clone(), context, stream);
        let mut config = pool.config();
        config.set_params(Some(caps), 0, 0, 0);
        config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META);
        pool.set_config(config).ok()?;
        Some(pool)
    }

    /// Bytes of each buffer.
    pub(crate) fn size(&self) -> u32 {
        self.config().params().map_or(0, |(_, size, ..)| size)
    }
}
