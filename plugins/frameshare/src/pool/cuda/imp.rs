// SPDX-License-Identifier: MIT OR Apache-2.0

//! Implementation of the CUDA pool.
//!
//! Nothing here may panic: these functions are called from C without a guard.

use super::super::{CAT, SlotAllocator};
use crate::{ffi::slot_memory, sync::lock};
use frameshare::{exporter::Slot, memory::Address};
use gst::{prelude::*, subclass::prelude::*};
use gst_cuda::{Reusable, memory::Rules};
use gst_video::VideoInfo;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// The origin of the memory of a pool, constant from its creation.
struct Origin {
    slots: Arc<SlotAllocator>,
    context: gst_cuda::Context,
    stream: gst_cuda::Stream,
}

/// A slot as GStreamer's memory: per-slot user data.
#[derive(Default)]
struct Wraps(Mutex<Option<Wrap>>);

struct Wrap {
    layout: VideoInfo,
    stream: gst_cuda::Stream,
    memory: Reusable,
}

#[derive(Default)]
struct State {
    layout: Option<VideoInfo>,
    /// Source of memory without a free slot; made on first use.
    private: Option<gst_cuda::BufferPool>,
}

#[derive(Default)]
pub(crate) struct CudaPool {
    origin: OnceLock<Origin>,
    state: Mutex<State>,
}

impl CudaPool {
    pub(super) fn settle(
        &self,
        slots: Arc<SlotAllocator>,
        context: &gst_cuda::Context,
        stream: &gst_cuda::Stream,
    ) {
        let _ = self.origin.set(Origin { slots, context: context.clone(), stream: stream.clone() });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// The memory of a new buffer.
    fn memory(&self, layout: &VideoInfo) -> Option<gst::Memory> {
        let origin = self.origin.get()?;
        let slot = origin.slots.slot(layout.size() as u64);
        if let Some(memory) = slot.and_then(|slot| origin.wrap(slot, layout)) {
            return Some(memory);
        }
        origin.slots.count_private();
        let mut buffer = self.private(origin)?.acquire_buffer(None).ok()?;
        let memory = buffer.memory(0)?;
        // The buffer must not return to its pool with memory that this pool owns now.
        buffer.get_mut()?.remove_all_memory();
        slot_memory::mark_private(&memory);
        Some(memory)
    }

    /// A pool of the library's own, which takes its memory back even without its buffers.
    fn private(&self, origin: &Origin) -> Option<gst_cuda::BufferPool> {
        if let Some(pool) = &self.state().private {
            return Some(pool.clone());
        }
        let caps = self.obj().config().params()?.0?;
        let pool = gst_cuda::BufferPool::new(&origin.context);
        let mut config = pool.config();
        config.set_params(Some(&caps), 0, 0, 0);
        gst_cuda::pool::set_stream(&mut config, &origin.stream);
        pool.set_config(config).ok()?;
        pool.set_active(true).ok()?;
        self.state().private = Some(pool.clone());
        Some(pool)
    }

    fn forget_private(&self) {
        let private = self.state().private.take();
        if let Some(pool) = private {
            let _ = pool.set_active(false);
        }
    }
}

impl Origin {
    /// Returns the wrapped memory of a slot: the existing one, or a new one.
    fn wrap(&self, slot: Slot, layout: &VideoInfo) -> Option<gst::Memory> {
        let Address::Device(address) = slot.address() else { return None };
        let mut wraps = lock(&slot.keep_with_slot(Wraps::default)?.0);
        let fits = |wrap: &&Wrap| wrap.layout == *layout && wrap.stream == self.stream;
        if let Some(wrap) = wraps.as_ref().filter(fits) {
            // The memory returned before the slot did.
            return wrap.memory.lend(slot.clone(), false);
        }
        let memory = Reusable::wrap(&self.context, Some(&self.stream), layout, address, Rules::default())?;
        let lent = memory.lend(slot.clone(), false);
        *wraps = Some(Wrap { layout: layout.clone(), stream: self.stream.clone(), memory });
        lent
    }
}

#[glib::object_subclass]
impl ObjectSubclass for CudaPool {
    const NAME: &'static str = "GstFrameshareCudaPool";
    type Type = super::CudaPool;
    type ParentType = gst_cuda::BufferPool;
}

impl ObjectImpl for CudaPool {
    fn dispose(&self) {
        self.forget_private();
    }
}

impl GstObjectImpl for CudaPool {}

impl BufferPoolImpl for CudaPool {
    fn options() -> &'static [&'static str] {
        &["GstBufferPoolOptionVideoMeta"]
    }

    fn set_config(&self, config: &mut gst::BufferPoolConfigRef) -> bool {
        let Some(origin) = self.origin.get() else { return false };
        let Some((Some(caps), _, min, max)) = config.params() else { return false };
        let Some(info) = super::super::video_info(&caps) else { return false };
        let layout = super::layout(&info, &origin.context);
        let Ok(size) = u32::try_from(layout.size()) else { return false };
        gst::debug!(CAT, imp = self, "buffers of {size} bytes on the GPU, {layout:?}");
        config.set_params(Some(&caps), size, min, max);
        // In place of upstream's choice: buffers of several pools use the same slots, one after the
        // other.
        gst_cuda::pool::set_stream(config, &origin.stream);
        self.forget_private();
        self.state().layout = Some(layout);
        gst_cuda::pool::set_config(self, config)
    }

    fn start(&self) -> bool {
        // The parent would allocate the minimum now; slots are made when they are first needed.
        true
    }

    fn stop(&self) -> bool {
        self.forget_private();
        self.parent_stop()
    }

    fn acquire_buffer(
        &self,
        params: Option<&gst::BufferPoolAcquireParams>,
    ) -> Result<gst::Buffer, gst::FlowError> {
        if self.obj().is_flushing() {
            return Err(gst::FlowError::Flushing);
        }
        self.alloc_buffer(params)
    }

    fn alloc_buffer(&self, _: Option<&gst::BufferPoolAcquireParams>) -> Result<gst::Buffer, gst::FlowError> {
        let layout = self.state().layout.clone().ok_or(gst::FlowError::NotNegotiated)?;
        let memory = self.memory(&layout).ok_or_else(|| {
            gst::error!(CAT, imp = self, "no GPU memory for a buffer of {} bytes", layout.size());
            gst::FlowError::Error
        })?;
        // The library chooses the layout of private memory.
        let layout = gst_cuda::memory::Memory::of(&memory).map_or(layout, |memory| memory.info());
        let mut buffer = gst::Buffer::new();
        let content = buffer.get_mut().ok_or(gst::FlowError::Error)?;
        content.append_memory(memory);
        gst_video::VideoMeta::add_full(
            content,
            gst_video::VideoFrameFlags::empty(),
            layout.format(),
            layout.width(),
            layout.height(),
            layout.offset(),
            layout.stride(),
        )
        .map_err(|_| gst::FlowError::Error)?;
        content.unset_flags(gst::BufferFlags::TAG_MEMORY);
        Ok(buffer)
    }

    fn release_buffer(&self, buffer: gst::Buffer) {
        drop(buffer);
    }
}
