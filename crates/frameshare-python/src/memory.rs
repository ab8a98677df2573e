// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of frames: the exporter's, or a private copy.

use crate::fork::OfProcess;
use frameshare::{
    cuda::{Context, Stream},
    drop_behind, reader,
};
use frameshare_cuda::{event::Event, memory::private::Allocation};
use pyo3::{PyResult, exceptions::PyMemoryError};
use std::{
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
};

/// The memory of a frame.
#[derive(Debug)]
pub enum Memory {
    /// The exporter's, leased and read-only.
    Leased(OfProcess<reader::Frame>),
    /// A private copy in host memory.
    Host(HostCopy),
    /// A private copy in GPU memory.
    Gpu(OfProcess<GpuCopy>),
}

impl Memory {
    /// The leased frame.
    pub fn leased(&self) -> Option<&reader::Frame> {
        match self {
            Self::Leased(frame) => Some(frame),
            Self::Host(_) | Self::Gpu(_) => None,
        }
    }

    /// Returns whether it is in GPU memory.
    pub fn is_on_gpu(&self) -> bool {
        match self {
            Self::Leased(frame) => frame.is_on_gpu(),
            Self::Host(_) => false,
            Self::Gpu(_) => true,
        }
    }

    /// Pointer to its first byte; `None` for GPU memory.
    pub fn host_start(&self) -> Option<NonNull<u8>> {
        match self {
            Self::Leased(frame) => frame.as_ptr(),
            Self::Host(copy) => Some(copy.start()),
            Self::Gpu(_) => None,
        }
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Leased(frame) => frame.len(),
            Self::Host(copy) => copy.size,
            Self::Gpu(copy) => copy.size,
        }
    }
}

/// A private copy in host memory. Atomics may be written through a shared reference, as the arrays
/// that view them do.
#[derive(Debug)]
pub struct HostCopy {
    words: Box<[AtomicU64]>,
    size: usize,
}

impl HostCopy {
    /// Zeros.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn new(size: usize) -> PyResult<Self> {
        let mut words = Vec::new();
        let count = size.div_ceil(8).max(1);
        words
            .try_reserve_exact(count)
            .map_err(|_| PyMemoryError::new_err(format!("no memory for a copy of {size} bytes")))?;
        words.resize_with(count, AtomicU64::default);
        Ok(Self { words: words.into_boxed_slice(), size })
    }

    /// Pointer to its first byte.
    pub fn start(&self) -> NonNull<u8> {
        NonNull::from(&*self.words).cast()
    }
}

/// A private copy in GPU memory, which no other process can import. It is freed behind the streams
/// that were named for it, by a call of the driver that itself waits for all other work. So nothing
/// is recorded behind the whole context, which would invalidate captures of other code, and work on
/// streams that were not named may use the copy.
///
/// While that call waits, the driver lets no thread of the process create a stream or an event.
/// Memory that is reused, or freed in the order of streams, needs no such call, but it needs the
/// names of all streams that use it.
#[derive(Debug)]
pub struct GpuCopy {
    /// Taken when this is dropped.
    allocation: Option<Allocation>,
    start: u64,
    size: usize,
    gpu: Arc<Context>,
    streams: Vec<Arc<Stream>>,
    /// Ends of the work on streams that use it no more.
    ended: Mutex<Vec<Event>>,
}

impl GpuCopy {
    /// Memory with undefined content.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn new(gpu: &Arc<Context>, size: usize) -> frameshare_cuda::Result<Self> {
        let allocation = Allocation::new(gpu, size)?;
        let start = allocation.ptr();
        Ok(Self {
            allocation: Some(allocation),
            start,
            size,
            gpu: Arc::clone(gpu),
            streams: Vec::new(),
            ended: Mutex::default(),
        })
    }

    /// Its device pointer.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Names the streams that use it.
    pub fn used_on(&mut self, streams: Vec<Arc<Stream>>) {
        self.streams = streams;
    }

    /// Ends its use on a stream, which may be destroyed then: it is freed behind the work that is
    /// queued there now.
    ///
    /// # Errors
    /// As [`Event::behind`].
    pub fn done_on(&self, stream: &Stream) -> frameshare_cuda::Result<()> {
        let end = Event::behind(stream, &self.gpu)?;
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).push(end);
        Ok(())
    }
}

impl Drop for GpuCopy {
    fn drop(&mut self) {
        let ended = std::mem::take(self.ended.get_mut().unwrap_or_else(PoisonError::into_inner));
        // No event is recorded on a stream that is being captured.
        let behind = |stream: &Arc<Stream>| Event::behind(stream, &self.gpu).ok();
        let done = self.streams.iter().filter_map(behind).chain(ended).collect();
        drop_behind(&self.gpu, Some(done), self.allocation.take());
    }
}
