// SPDX-License-Identifier: MIT OR Apache-2.0

//! Held frames, and the views of their memory that are out.
//!
//! A [`Holder`] is shared by a `Frame` and its `Plane`s. Each view that goes out, by whatever
//! protocol, holds a [`View`], so that the lease ends with the last of them. Dropping holders and
//! views touches no Python.

use crate::{
    cuda_stream::{Handle, NamedStream},
    error::ReleasedError,
    fork::Process,
    gpu::Gpu,
    memory::Memory,
};
use frameshare::cuda::{Context, Stream};
use pyo3::{Py, PyAny, PyResult, exceptions::PyBufferError};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicUsize, Ordering},
};

/// A frame that this process holds, or a copy of one.
#[derive(Debug)]
pub struct Lease {
    // Fields are dropped in this order: the release is recorded on the streams.
    memory: Memory,
    /// Streams that consumers have named, each once, so that the release follows each once.
    streams: Mutex<Vec<Used>>,
    /// The GPU that frames are read on, if the stream was opened for a GPU.
    gpu: Option<Arc<Gpu>>,
    /// Number of views that are out.
    views: AtomicUsize,
}

/// A stream that a consumer has named.
#[derive(Debug)]
struct Used {
    stream: Arc<Stream>,
    /// The objects that keep it alive. The stream has them, too: it outlives the lease if the
    /// engine defers the release.
    objects: Arc<Mutex<Vec<Py<PyAny>>>>,
}

impl Used {
    /// Keeps an object that was named for the stream.
    fn keep(&self, object: &mut Option<Py<PyAny>>) {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |object: &mut Py<PyAny>| !objects.iter().any(|known| known.is(&*object));
        if let Some(object) = object.take_if(is_new) {
            objects.push(object);
        }
    }
}

impl Lease {
    /// A frame without views.
    pub fn new(memory: Memory, gpu: Option<Arc<Gpu>>) -> Self {
        Self { memory, streams: Mutex::default(), gpu, views: AtomicUsize::new(0) }
    }

    /// The memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The GPU of a frame in GPU memory.
    pub fn gpu(&self) -> Option<&Arc<Gpu>> {
        self.gpu.as_ref().filter(|_| self.memory.is_on_gpu())
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Used>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stream of a name, the same for each handle. Its objects are kept until the frame
    /// is released.
    ///
    /// # Errors
    /// As [`Handle::open`].
    pub fn stream(&self, mut name: NamedStream, gpu: &Arc<Context>) -> PyResult<Arc<Stream>> {
        let mut streams = self.streams();
        let index = match streams.iter().position(|used| used.stream.as_raw() == name.handle.raw()) {
            Some(index) => index,
            None => {
                let objects = Arc::default();
                let stream = Arc::new(name.handle.open_with(gpu, Arc::clone(&objects))?);
                streams.push(Used { stream, objects });
                streams.len() - 1
            }
        };
        streams[index].keep(&mut name.object);
        Ok(Arc::clone(&streams[index].stream))
    }

    /// Names a stream that was found for another lease.
    pub fn used_on(&self, stream: &Arc<Stream>) {
        self.streams().push(Used { stream: Arc::clone(stream), objects: Arc::default() });
    }

    /// Forgets a stream, and what keeps it.
    pub fn forget(&self, handle: Handle) {
        let is_ended = |used: &mut Used| used.stream.as_raw() == handle.raw();
        let ended: Vec<_> = self.streams().extract_if(.., is_ended).collect();
        // Unlocked before.
        drop(ended);
    }

    /// Number of views that are out.
    pub fn views(&self) -> usize {
        self.views.load(Ordering::Acquire)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Memory::Gpu(copy) = &mut self.memory
            && let Some(copy) = copy.get_mut()
        {
            let streams = self.streams.get_mut().unwrap_or_else(PoisonError::into_inner);
            copy.used_on(streams.iter().map(|used| Arc::clone(&used.stream)).collect());
        }
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
                 __array_interface__ was read, as by hasattr(), or the address in its \
                 __cuda_array_interface__",
                self.sequence,
                if views == 1 { "1 array exists".into() } else { format!("{views} arrays exist") },
                if views == 1 { "it" } else { "them" },
            ))),
        }
    }
}
