// SPDX-License-Identifier: MIT OR Apache-2.0

//! Implementation of the host pool.
//!
//! Unused buffers wait in a list of this pool instead of `GstBufferPool`'s queue: that one wakes
//! waiters with a system call, of which there are none here, and cannot be trimmed while the pool
//! is active.
//!
//! Nothing here may panic: these functions are called from C without a guard. The one lock,
//! `state`, is not held while buffers are dropped, since dropping a buffer can call any code.

use super::{CAT, SlotAllocator};
use crate::{
    ffi::{
        slot_memory::{self, Origin},
        slot_planes,
    },
    sync::lock,
};
use gst::{prelude::*, subclass::prelude::*};
use gst_video::prelude::*;
use std::{
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::{Duration, Instant},
};

/// Time for which an unused buffer is kept, with its slot.
const UNUSED: Duration = Duration::from_secs(5);

/// The properties of each buffer.
#[derive(Clone, Default)]
struct Shape {
    params: gst::AllocationParams,
    /// Size of the buffer in bytes.
    size: usize,
    /// The layout of the planes, if a video meta is wanted.
    layout: Option<(gst_video::VideoInfo, gst_video::VideoAlignment)>,
    /// Number of unused buffers that are kept in any case.
    min: usize,
}

impl Shape {
    /// Returns the start of the buffer in its memory, and the size of the memory. Slots start on a
    /// page, so that aligning the start keeps any alignment up to that of a page.
    fn extent(&self) -> Option<(usize, usize)> {
        let start = self.params.prefix().checked_add(self.params.align())? & !self.params.align();
        Some((start, start.checked_add(self.size)?.checked_add(self.params.padding())?))
    }
}

#[derive(Default)]
struct State {
    shape: Shape,
    /// The last one is used next. Each has the time at which it was returned.
    unused: Vec<(Instant, gst::Buffer)>,
}

impl State {
    /// Keeps an unused buffer. Returns the one that was unused for the longest time, if that is too
    /// long.
    fn keep(&mut self, buffer: gst::Buffer, now: Instant) -> Option<gst::Buffer> {
        self.unused.push((now, buffer));
        let is_old = self.unused.first().is_some_and(|(since, _)| now.duration_since(*since) > UNUSED);
        (is_old && self.unused.len() > self.shape.min.max(1)).then(|| self.unused.remove(0).1)
    }
}

#[derive(Default)]
pub(crate) struct HostPool {
    slots: OnceLock<Arc<SlotAllocator>>,
    state: Mutex<State>,
}

impl HostPool {
    pub(super) fn settle(&self, slots: Arc<SlotAllocator>) {
        let _ = self.slots.set(slots);
    }

    pub(super) fn trim(&self) {
        let unused = std::mem::take(&mut self.state().unused);
        drop(unused);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn unused(&self) -> Option<gst::Buffer> {
        self.state().unused.pop().map(|(_, buffer)| buffer)
    }

    /// The memory of a new buffer.
    fn memory(&self, shape: &Shape) -> Option<gst::Memory> {
        let (start, end) = shape.extent()?;
        let slots = self.slots.get()?;
        // Larger alignments than a page's are met by the heap.
        let slot = if shape.params.align() < 4096 { slots.slot(end as u64) } else { None };
        if let Some(memory) = slot.and_then(|slot| slot_memory::wrap(slot, end, start, shape.size)) {
            return Some(memory);
        }
        slots.count_private();
        slot_memory::private(shape.size, &shape.params)
    }

    /// Reads the properties of the buffers from `config`, and updates `config`.
    fn shape(&self, config: &mut gst::BufferPoolConfigRef) -> Option<Shape> {
        let (caps, size, min, max) = config.params()?;
        let params = config.allocator().map(|(_, params)| params).unwrap_or_default();
        let mut shape = Shape { params, size: size as usize, layout: None, min: min as usize };
        if let Some(mut info) = caps.as_ref().and_then(|caps| super::video_info(caps)) {
            if shape.size < info.size() {
                gst::warning!(CAT, imp = self, "{size} bytes are too few for a frame of {}", info.size());
                return None;
            }
            if config.has_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META) {
                let mut alignment = gst_video::VideoAlignment::default();
                if config.has_option(gst_video::BUFFER_POOL_OPTION_VIDEO_ALIGNMENT) {
                    alignment = config.video_alignment().unwrap_or_default();
                    info.align(&mut alignment).ok()?;
                    config.set_video_alignment(&alignment);
                }
                shape.size = shape.size.max(info.size());
                shape.layout = Some((info, alignment));
            }
        }
        config.set_params(caps.as_ref(), u32::try_from(shape.size).ok()?, min, max);
        shape.extent().map(|_| shape)
    }
}

#[glib::object_subclass]
impl ObjectSubclass for HostPool {
    const NAME: &'static str = "GstFrameshareHostPool";
    type Type = super::HostPool;
    type ParentType = gst::BufferPool;
}

impl ObjectImpl for HostPool {}
impl GstObjectImpl for HostPool {}

impl BufferPoolImpl for HostPool {
    fn options() -> &'static [&'static str] {
        &["GstBufferPoolOptionVideoMeta", "GstBufferPoolOptionVideoAlignment"]
    }

    fn set_config(&self, config: &mut gst::BufferPoolConfigRef) -> bool {
        let Some(shape) = self.shape(config) else { return false };
        gst::debug!(CAT, imp = self, "buffers of {} bytes, {:?}", shape.size, shape.layout);
        let unused = {
            let mut state = self.state();
            state.shape = shape;
            std::mem::take(&mut state.unused)
        };
        drop(unused);
        self.parent_set_config(config)
    }

    fn start(&self) -> bool {
        // The parent would allocate the minimum now; slots are made when they are first needed.
        true
    }

    fn stop(&self) -> bool {
        self.trim();
        self.parent_stop()
    }

    fn acquire_buffer(
        &self,
        params: Option<&gst::BufferPoolAcquireParams>,
    ) -> Result<gst::Buffer, gst::FlowError> {
        if self.obj().is_flushing() {
            return Err(gst::FlowError::Flushing);
        }
        if let Some(buffer) = self.unused() {
            return Ok(buffer);
        }
        if let Some(slots) = self.slots.get() {
            slots.reclaim();
        }
        self.unused().map_or_else(|| self.alloc_buffer(params), Ok)
    }

    fn alloc_buffer(&self, _: Option<&gst::BufferPoolAcquireParams>) -> Result<gst::Buffer, gst::FlowError> {
        let shape = self.state().shape.clone();
        let memory = self.memory(&shape).ok_or_else(|| {
            gst::error!(CAT, imp = self, "no memory for a buffer of {} bytes", shape.size);
            gst::FlowError::Error
        })?;
        let mut buffer = gst::Buffer::new();
        let content = buffer.get_mut().ok_or(gst::FlowError::Error)?;
        content.append_memory(memory);
        if let Some((info, alignment)) = &shape.layout {
            let flags = gst_video::VideoFrameFlags::empty();
            let meta = gst_video::VideoMeta::add_from_info(content, flags, info);
            let mut meta = meta.map_err(|_| gst::FlowError::Error)?;
            meta.set_alignment(alignment).map_err(|_| gst::FlowError::Error)?;
            slot_planes::adopt(meta);
        }
        // The tag means that a buffer's memories have changed since it left the pool.
        content.unset_flags(gst::BufferFlags::TAG_MEMORY);
        Ok(buffer)
    }

    fn release_buffer(&self, buffer: gst::Buffer) {
        let whole = !buffer.flags().contains(gst::BufferFlags::TAG_MEMORY) && buffer.is_all_memory_writable();
        let in_slot = buffer.n_memory() == 1
            && matches!(slot_memory::origin(buffer.peek_memory(0)), Some(Origin::Slot(_)));
        let may_keep = self.slots.get().is_some_and(|slots| slots.may_keep_slots());
        if !whole || !in_slot || !may_keep || self.obj().is_flushing() {
            return;
        }
        let memory = buffer.peek_memory(0);
        let found = (memory.offset(), memory.size());
        // Upstream may have cut the buffer; the parent's reset restores only the end.
        let intact = |shape: &Shape| shape.extent().map(|(start, _)| (start, shape.size)) == Some(found);
        let mut state = self.state();
        let unwanted = if intact(&state.shape) { state.keep(buffer, Instant::now()) } else { Some(buffer) };
        drop(state);
        drop(unwanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_beyond_recent_use_and_minimum_are_dropped() {
        gst::init().unwrap();
        let mut state = State { shape: Shape { min: 2, ..Shape::default() }, ..State::default() };
        let begin = Instant::now();
        // A burst.
        assert!((0..10).all(|_| state.keep(gst::Buffer::new(), begin).is_none()));
        let mut use_one = |seconds: u64| {
            let (_, buffer) = state.unused.pop().unwrap();
            let dropped = state.keep(buffer, begin + Duration::from_secs(seconds));
            (dropped.is_some(), state.unused.len())
        };
        assert_eq!(use_one(5), (false, 10));
        assert_eq!([(); 10].map(|()| use_one(6)).last(), Some(&(false, 2)));
    }
}
