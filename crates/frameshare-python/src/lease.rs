// SPDX-License-Identifier: MIT OR Apache-2.0

//! Held frames, and the views of their memory that are out.
//!
//! A [`Holder`] is shared by a `Frame` and its `Plane`s. Each view that goes out, by whatever
//! protocol, holds a [`View`], so that the lease ends with the last of them. Dropping holders and
//! views touches no Python.

use crate::{error::ReleasedError, memory::Memory};
use frameshare::cuda::Context;
use pyo3::{PyResult, exceptions::PyBufferError};
use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

/// A frame that this process holds, or a copy of one.
#[derive(Debug)]
pub struct Lease {
    memory: Memory,
    /// The context that frames are read in, if the stream was opened for a GPU.
    gpu: Option<Arc<Context>>,
    /// Number of views that are out.
    views: AtomicUsize,
}

impl Lease {
    /// A frame without views.
    pub fn new(memory: Memory, gpu: Option<Arc<Context>>) -> Self {
        Self { memory, gpu, views: AtomicUsize::new(0) }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The context of a frame in GPU memory.
    pub fn gpu(&self) -> Option<&Arc<Context>> {
        self.gpu.as_ref().filter(|_| self.memory.is_on_gpu())
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
}

impl Holder {
    /// A holder of a frame.
    pub fn new(sequence: u64, lease: Lease) -> Self {
        Self { lease: Mutex::new(Some(Arc::new(lease))), sequence }
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

    /// Returns the lease.
    ///
    /// # Errors
    /// `ReleasedError` after the release.
    pub fn lease(&self) -> PyResult<Arc<Lease>> {
        self.lock().clone().ok_or_else(|| {
            ReleasedError::new_err(format!(
                "frame {} was released: its memory may hold another frame by now",
                self.sequence
            ))
        })
    }

    /// Returns whether the frame was released.
    pub fn is_released(&self) -> bool {
        self.lock().is_none()
    }

    /// Releases the frame; without effect after the first time.
    ///
    /// # Errors
    /// `BufferError` with the number of views that are out.
    pub fn release(&self) -> PyResult<()> {
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
                 ends with the last of them",
                self.sequence,
                if views == 1 { "1 array exists".into() } else { format!("{views} arrays exist") },
                if views == 1 { "it" } else { "them" },
            ))),
        }
    }
}
