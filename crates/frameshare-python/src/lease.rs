// SPDX-License-Identifier: MIT OR Apache-2.0

//! Held frames, and the views of their memory that are out.
//!
//! A [`Holder`] is shared by a `Frame` and its `Plane`s. Each view that goes out, by whatever
//! protocol, holds a [`View`], so that the lease ends with the last of them. Dropping holders and
//! views touches no Python.

use crate::{error::ReleasedError, fork::Process, gpu::Gpu, memory::Memory};
use frameshare::cuda::{self, Stream};
use pyo3::{Py, PyAny, PyResult, exceptions::PyBufferError};
use std::{
    ffi::c_void,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicUsize, Ordering},
    },
};

/// A frame that this process holds, or a copy of one.
#[derive(Debug)]
pub struct Lease {
    // Fields are dropped in this order: the release is recorded on the streams.
    memory: Memory,
    /// Streams that consumers have named, each once, so that the release follows each once.
    streams: Mutex<Vec<Arc<Stream>>>,
    /// Objects that keep these streams. Dropping one without the interpreter only queues it.
    owners: Mutex<Vec<Py<PyAny>>>,
    /// The GPU that frames are read on, if the stream was opened for a GPU.
    gpu: Option<Arc<Gpu>>,
    /// Number of views that are out.
    views: AtomicUsize,
}

impl Lease {
    /// A frame without views.
    pub fn new(memory: Memory, gpu: Option<Arc<Gpu>>) -> Self {
        Self { memory, streams: Mutex::default(), owners: Mutex::default(), gpu, views: AtomicUsize::new(0) }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The GPU of a frame in GPU memory.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.gpu.as_ref().filter(|_| self.memory.is_on_gpu())
    }

    /// Returns the object of a stream, the same for each handle; `find` makes it.
    ///
    /// # Errors
    /// That of `find`.
    pub fn stream(
        &self,
        handle: *mut c_void,
        find: impl FnOnce() -> cuda::Result<Stream>,
    ) -> cuda::Result<Arc<Stream>> {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = streams.iter().find(|known| known.as_raw() == handle) {
            return Ok(Arc::clone(known));
        }
        let found = Arc::new(find()?);
        streams.push(Arc::clone(&found));
        Ok(found)
    }

    /// Keeps an object until the lease has ended.
    pub fn keep(&self, owner: Py<PyAny>) {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).push(owner);
    }

    /// Number of views that are out.
    pub fn views(&self) -> usize {
        self.views.load(Ordering::Acquire)
    }
}

/// A view of a frame's memory: an array, a tensor or a buffer of another library.
#[derive(Debug)]
pub struct View(Arc<Lease>);

impl View {
    /// A view of a held frame.
    pub fn of(lease: &Arc<Lease>) -> Self {
        lease.views.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(lease))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.0.views.fetch_sub(1, Ordering::Release);
    }
}

/// A frame until it is released.
#[derive(Debug)]
pub struct Holder {
    lease: Mutex<Option<Arc<Lease>>>,
    sequence: u64,
    process: Process,
}

impl Holder {
    /// A holder of a frame.
    pub fn new(sequence: u64, lease: Lease) -> Self {
        Self { lease: Mutex::new(Some(Arc::new(lease))), sequence, process: Process::current() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Lease>>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A reference to the lease that does not hold it.
    pub fn watch(&self) -> Weak<Lease> {
        self.lock().as_ref().map(Arc::downgrade).unwrap_or_default()
    }

    /// The frame's sequence number.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    fn check_process(&self) -> PyResult<()> {
        self.process.check(format_args!("frame {}", self.sequence))
    }

    /// Returns the lease.
    ///
    /// # Errors
    /// `ReleasedError` after the release, `Error` in a forked child.
    pub fn lease(&self) -> PyResult<Arc<Lease>> {
        self.check_process()?;
        self.lock().clone().ok_or_else(|| {
            ReleasedError::new_err(format!(
                "frame {} was released: its memory may hold another frame by now",
                self.sequence
            ))
        })
    }

    /// Returns whether the frame was released.
    pub fn is_released(&self) -> bool {
        // In a forked child, another thread of the parent may have held the lock.
        self.process.is_current() && self.lock().is_none()
    }

    /// Releases the frame; without effect after the first time.
    ///
    /// # Errors
    /// `BufferError` with the number of views that are out, `Error` in a forked child.
    pub fn release(&self) -> PyResult<()> {
        self.check_process()?;
        let mut lease = self.lock();
        let Some(held) = &*lease else { return Ok(()) };
        match held.views() {
            0 => {
                // The lock is free again before the lease ends.
                let ended = lease.take();
                drop(lease);
                drop(ended);
                Ok(())
            }
            views => Err(PyBufferError::new_err(format!(
                "frame {} cannot be released: {} of its memory; delete {} first, or drop the frame, which \
                 ends with the last of them. A plane or frame counts as an array once its \
                 __array_interface__ or __cuda_array_interface__ was read, as by hasattr()",
                self.sequence,
                if views == 1 { "1 array exists".into() } else { format!("{views} arrays exist") },
                if views == 1 { "it" } else { "them" },
            ))),
        }
    }
}
