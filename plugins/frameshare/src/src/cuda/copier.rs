// SPDX-License-Identifier: MIT OR Apache-2.0

//! Private CUDA memory for frames that are copied.
//!
//! # Safety
//! Passes addresses to a stream. The source is leased, and the lease ends only when the work queued
//! so far in the context is done; the destination is mapped and returns to its pool with the
//! buffer, and its next use waits for the context's work.
#![allow(unsafe_code)]

use super::{
    error::CudaError,
    layout::size_of_plane,
    line::{Line, caps_in},
};
use crate::src::{leased_memory::LeasedMemory, picture::Picture};
use frameshare_cuda::{
    context::Context,
    copy::{Plane, Side},
    event::Event,
};
use glib::object::Cast;
use gst::prelude::*;
use gst_video::VideoInfo;
use std::sync::Arc;

/// Pool of GStreamer's own CUDA memory; it grows with the buffers that downstream keeps.
pub(super) struct Copier {
    engine: Arc<Context>,
    pool: Option<Pool>,
    /// Event that covers all work of the context, on every stream.
    read: Option<Event>,
}

struct Pool {
    info: VideoInfo,
    stream: gst_cuda::Stream,
    pool: gst::BufferPool,
}

impl Copier {
    pub fn new(engine: &Arc<Context>) -> Self {
        Self { engine: engine.clone(), pool: None, read: None }
    }

    /// Copies an image on a stream that is ordered behind the write of the frame. The lease may end
    /// as soon as this returns.
    pub fn of(
        &mut self,
        lease: &LeasedMemory,
        picture: &Picture<'_>,
        context: &gst_cuda::Context,
        line: &Line,
    ) -> Result<gst::Buffer, CudaError> {
        let failed = |error: frameshare_cuda::Error| CudaError::Copy(error.to_string());
        let pool = self.pool(&picture.info, context, &line.gst)?;
        let mut buffer =
            pool.acquire_buffer(None).map_err(|error| CudaError::Copy(format!("no buffer: {error}")))?;
        // Earlier users of the buffer may have queued reads on any stream.
        let read = match &mut self.read {
            Some(read) => read,
            none => none.insert(Event::new(&self.engine).map_err(failed)?),
        };
        read.record_context_blocking(&line.engine).and_then(|()| line.engine.wait(read)).map_err(failed)?;
        let from = lease.address().ok_or(CudaError::NotVideo)?;
        let memory = buffer.make_mut().peek_memory_mut(0)?;
        let to = gst_cuda::memory::Memory::of(memory).map(|memory| memory.info());
        let to = to.ok_or_else(|| CudaError::Copy("the pool's buffer has no CUDA memory".into()))?;
        let mapped = gst_cuda::memory::map_writable(memory)
            .ok_or_else(|| CudaError::Copy("the pool's memory cannot be mapped".into()))?;
        for plane in 0..picture.layout.offsets().len() {
            let (rows, bytes) = size_of_plane(&picture.info, plane);
            let side = |start: u64, offset: usize, stride: i32| Plane {
                at: Side::Device(start + offset as u64),
                pitch: usize::try_from(stride).unwrap_or(0),
            };
            let from = side(from, picture.layout.offsets()[plane], picture.layout.strides()[plane]);
            let to = side(mapped.address(), to.offset()[plane], to.stride()[plane]);
            // SAFETY: every row was checked to lie inside the frame, which is leased; the pool's
            // memory has room for the same image by its own layout. See the module header for the
            // lifetimes.
            unsafe { line.engine.copy_2d(to, from, bytes, rows) }.map_err(failed)?;
        }
        drop(mapped);
        Ok(buffer)
    }

    fn pool(
        &mut self,
        info: &VideoInfo,
        context: &gst_cuda::Context,
        stream: &gst_cuda::Stream,
    ) -> Result<&gst::BufferPool, CudaError> {
        let fits = |pool: &Pool| pool.info == *info && pool.stream == *stream;
        if !self.pool.as_ref().is_some_and(fits) {
            self.clear();
            let pool = new_pool(info, context, stream)
                .map_err(|error| CudaError::Copy(format!("no pool of {}: {error}", info.format())))?;
            self.pool = Some(Pool { info: info.clone(), stream: stream.clone(), pool });
        }
        self.pool.as_ref().map(|pool| &pool.pool).ok_or_else(|| CudaError::Copy("no pool".into()))
    }

    /// Frees unused buffers; buffers in use are freed when they are dropped.
    fn clear(&mut self) {
        if let Some(Pool { pool, .. }) = self.pool.take() {
            let _ = pool.set_active(false);
        }
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.clear();
    }
}

fn new_pool(
    info: &VideoInfo,
    context: &gst_cuda::Context,
    stream: &gst_cuda::Stream,
) -> Result<gst::BufferPool, glib::BoolError> {
    let pool = gst_cuda::BufferPool::new(context).upcast::<gst::BufferPool>();
    let caps = caps_in(&info.to_caps()?, true);
    let mut config = pool.config();
    let size = u32::try_from(info.size())
        .map_err(|_| glib::bool_error!("the frame exceeds the 32-bit size limit"))?;
    config.set_params(Some(&caps), size, 0, 0);
    config.add_option(gst_video::BUFFER_POOL_OPTION_VIDEO_META.as_str());
    gst_cuda::pool::set_stream(&mut config, stream);
    pool.set_config(config)?;
    pool.set_active(true)?;
    Ok(pool)
}
