// SPDX-License-Identifier: MIT OR Apache-2.0

//! Held frames, and the views of their memory that are out.
//!
//! A [`Holder`] is shared by a `Frame` and its `Plane`s. Each view that goes out, by whatever
//! protocol, holds a [`View`], so that the lease ends with the last of them. Dropping holders and
//! views touches no Python.

use crate::error::ReleasedError;
use frameshare::{cuda::Context, reader};
use pyo3::{PyResult, exceptions::PyBufferError};
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// A frame that this process holds.
#[derive(Debug)]
pub struct Lease {
    frame: reader::Frame,
    /// The context that frames are read in, if the stream was opened for a GPU.
    gpu: Option<Arc<Context>>,
    /// Number of views that are out.
    views: AtomicUsize,
}

impl Lease {
    /// The frame.
    pub fn frame(&self) -> &reader::Frame {
        &self.frame
    }

    /// The context that frames are read in, if the stream was opened for a GPU.
    pub fn gpu(&self) -> Option<&Arc<Context>> {
        self.gpu.as_ref()
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
    pub fn new(frame: reader::Frame, gpu: Option<Arc<Context>>) -> Self {
        let sequence = frame.descriptor().sequence.0;
        let lease = Lease { frame, gpu, views: AtomicUsize::new(0) };
        Self { lease: Mutex::new(Some(Arc::new(lease))), sequence }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Arc<Lease>>> {
        self.lease.lock().unwrap_or_else(PoisonError::into_inner)
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
        match held.views.load(Ordering::Acquire) {
            0 => {
                // The lock is free again before the lease ends.
                let ended = lease.take();
                drop(lease);
                drop(ended);
                Ok(())
            }
            views => Err(PyBufferError::new_err(format!(
                "frame {} cannot be released: {views} array{} of its memory still exist{}; delete {} first",
                self.sequence,
                if views == 1 { "" } else { "s" },
                if views == 1 { "s" } else { "" },
                if views == 1 { "it" } else { "them" },
            ))),
        }
    }
}
