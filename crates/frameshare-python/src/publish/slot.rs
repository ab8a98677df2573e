// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots that Python writes in place: the buffer protocol, `__array_interface__`, DLPack and
//! `__cuda_array_interface__` of their planes, all writable.
//!
//! A view that outlives the publication keeps the slot out of use, so that a late write reaches no
//! other frame than the one that it belongs to.
//!
//! # Safety
//!
//! Addresses that go out by `export` are inside the slot that goes with them as the owner. Dropping
//! a slot touches no Python: deleters run on any thread, without the GIL.
#![allow(unsafe_code)]

use super::{
    metas,
    number::number,
    shared::{Shared, Times},
    target::Video,
};
use crate::{
    cuda_stream::{Handle, NamedStream},
    error::{OrRaise, ReleasedError},
    export::{
        buffer,
        dlpack::{self, Shown},
        interface,
    },
    layout::ArrayLayout,
    wait::Deadline,
};
use dlpark::DlpackFlags;
use frameshare::{
    cuda::{Context, Stream},
    drop_behind,
    exporter::NewFrame,
    memory::Address,
};
use frameshare_cuda::event::Event;
use pyo3::{
    exceptions::{PyAttributeError, PyBufferError, PyIndexError, PyValueError},
    ffi,
    prelude::*,
    types::{PyDict, PyList, PyTuple},
};
use std::{
    ffi::c_int,
    mem, ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
};

/// A slot that is being written, and the streams that do.
#[derive(Debug)]
pub struct Writing {
    frame: NewFrame,
    gpu: Option<Arc<Context>>,
    /// The streams, with the objects that keep them.
    streams: Mutex<Vec<Writer>>,
    /// An address went out without a stream.
    anywhere: AtomicBool,
}

/// A stream that writes a slot.
#[derive(Debug)]
struct Writer {
    stream: NamedStream,
    /// The thread that named it. On other threads, the handle of the default stream of each thread
    /// is another stream.
    thread: ThreadId,
}

impl Writer {
    /// Returns the handle if it means the same stream on this thread.
    fn handle(&self) -> Option<Handle> {
        let is_foreign = self.stream.handle == Handle::PER_THREAD && self.thread != thread::current().id();
        (!is_foreign).then_some(self.stream.handle)
    }
}

impl Writing {
    /// A frame that was acquired just now.
    pub fn new(frame: NewFrame, gpu: Option<Arc<Context>>) -> Self {
        Self { frame, gpu, streams: Mutex::default(), anywhere: AtomicBool::new(false) }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Writer>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names a stream that writes the slot, and keeps its object until the slot is dropped.
    pub fn used_on(&self, stream: impl Into<NamedStream>) {
        self.streams().push(Writer { stream: stream.into(), thread: thread::current().id() });
    }

    /// Returns a stream behind all work that writes the slot; `None` for host memory. No thread can
    /// name the default stream of another one: its work is covered by that of the context.
    fn written(&self) -> PyResult<Option<Stream>> {
        let Some(gpu) = &self.gpu else { return Ok(None) };
        let mut anywhere = self.anywhere.load(Ordering::Relaxed);
        let mut streams = Vec::new();
        for handle in self.streams().iter().map(Writer::handle) {
            match handle {
                Some(handle) if streams.contains(&handle) => {}
                Some(handle) => streams.push(handle),
                None => anywhere = true,
            }
        }
        match (&streams[..], anywhere) {
            ([], false) => Handle::DEFAULT.open(gpu).map(Some),
            ([one], false) => one.open(gpu).map(Some),
            (several, _) => {
                let all = Stream::new(gpu).or_raise()?;
                for stream in several {
                    let stream = stream.open(gpu)?;
                    all.wait_for(&stream).or_raise()?;
                }
                if anywhere {
                    let written = Event::new(gpu).or_raise()?;
                    written.record_context_blocking(&all).or_raise()?;
                    all.wait(&written).or_raise()?;
                }
                Ok(Some(all))
            }
        }
    }
}

/// A free slot of an exporter, written in place. It is published at the end of a `with` block, or
/// by `publish`.
#[pyclass(frozen, module = "frameshare", weakref)]
#[derive(Debug)]
pub struct Slot {
    shared: Arc<Shared>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    times: Times,
}

#[derive(Debug)]
enum Phase {
    Writing(Arc<Writing>),
    /// A thread has taken the slot, and publishes it.
    Publishing,
    Published(u64),
    Discarded,
}

impl Phase {
    /// Why the slot is not to be written.
    fn error(&self) -> PyErr {
        ReleasedError::new_err(match self {
            Self::Writing(_) | Self::Publishing => {
                "the slot is being published by another thread: wait for it, or acquire another slot".into()
            }
            Self::Published(sequence) => {
                format!("the slot was published as frame {sequence}: acquire another one")
            }
            Self::Discarded => "the slot was discarded: acquire another one".into(),
        })
    }
}

/// A slot that this thread alone has, to publish it. Dropping it gives the slot back.
struct Claim<'a> {
    slot: &'a Slot,
    writing: Arc<Writing>,
    next: Phase,
}

impl<'a> Claim<'a> {
    /// Takes a slot that is being written, and its times.
    fn take(slot: &'a Slot) -> PyResult<(Self, Times)> {
        let mut state = slot.lock()?;
        let Phase::Writing(writing) = &state.phase else { return Err(state.phase.error()) };
        let writing = Arc::clone(writing);
        state.phase = Phase::Publishing;
        Ok((Self { slot, next: Phase::Writing(Arc::clone(&writing)), writing }, state.times.clone()))
    }

    /// Publishes the slot; it is given back on an error.
    fn publish(&mut self, py: Python<'_>, times: &Times, limit: Deadline) -> PyResult<u64> {
        let (shared, writing) = (&self.slot.shared, &self.writing);
        let stream = py.detach(|| writing.written())?;
        let sequence = shared.publish_frame(py, &writing.frame, stream.as_ref(), times, limit)?;
        self.next = Phase::Published(sequence);
        Ok(sequence)
    }

    /// Frees the slot behind the work that may write it.
    fn discard(&mut self, py: Python<'_>) {
        self.next = Phase::Discarded;
        py.detach(|| self.slot.free(&self.writing));
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Ok(mut state) = self.slot.lock() {
            state.phase = mem::replace(&mut self.next, Phase::Discarded);
        }
    }
}

impl Slot {
    /// A slot that was acquired just now.
    pub fn new(shared: Arc<Shared>, writing: Writing, times: Times) -> Self {
        let state = State { phase: Phase::Writing(Arc::new(writing)), times };
        Self { shared, state: Mutex::new(state) }
    }

    /// Locks the state, which another thread of the parent may have locked at a fork.
    fn lock(&self) -> PyResult<MutexGuard<'_, State>> {
        self.shared.check_process()?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Changes a slot while no thread can publish it.
    fn change<T>(&self, change: impl FnOnce(&Arc<Writing>, &mut Times) -> T) -> PyResult<T> {
        let State { phase, times } = &mut *self.lock()?;
        match phase {
            Phase::Writing(writing) => Ok(change(writing, times)),
            phase => Err(phase.error()),
        }
    }

    fn writing(&self) -> PyResult<Arc<Writing>> {
        self.change(|writing, _| Arc::clone(writing))
    }

    fn video(&self) -> PyResult<&Video> {
        self.shared.video.as_ref().ok_or_else(|| PyValueError::new_err("a stream of data has no planes"))
    }

    fn plane_of(&self, writing: &Arc<Writing>, index: isize) -> PyResult<SlotPlane> {
        let video = self.video()?;
        let count = video.planes.len();
        let found = usize::try_from(index)
            .ok()
            .and_then(|index| video.planes.get(index).zip(video.arrays.get(index)));
        let Some((plane, array)) = found else {
            return Err(PyIndexError::new_err(format!(
                "plane {index} of a frame of {}, which has {count}",
                video.format.pixels
            )));
        };
        let (width, height, stride) = (plane.width, plane.height, plane.stride);
        Ok(SlotPlane { writing: Arc::clone(writing), array: array.clone(), width, height, stride })
    }

    /// Returns whether the slot was published or discarded.
    fn is_done(&self) -> PyResult<bool> {
        Ok(matches!(self.lock()?.phase, Phase::Published(_) | Phase::Discarded))
    }

    /// Frees the slot behind the work that may write it.
    fn free(&self, writing: &Writing) {
        let Some(gpu) = &writing.gpu else { return };
        let slot = writing.frame.slot().clone();
        match writing.written() {
            Ok(None) => {}
            Ok(Some(stream)) => self.shared.drop_after(&stream, slot),
            // During a capture, no record covers all work of the context: it is made later.
            Err(_) => drop_behind(gpu, None, slot),
        }
    }
}

#[pymethods]
impl Slot {
    /// All planes.
    #[getter]
    fn planes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let writing = self.writing()?;
        let planes = (0..self.video()?.planes.len() as isize)
            .map(|index| Py::new(py, self.plane_of(&writing, index)?));
        PyTuple::new(py, planes.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns a plane, counted from 0.
    fn plane(&self, index: isize) -> PyResult<SlotPlane> {
        self.plane_of(&self.writing()?, index)
    }

    /// Presentation time in ns of `time.monotonic_ns()`; the time of publication by default.
    #[getter]
    fn pts(&self) -> PyResult<Option<u64>> {
        Ok(self.lock()?.times.pts)
    }

    /// Sets the presentation time.
    #[setter]
    fn set_pts(&self, pts: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let pts = pts.map(|pts| number("pts", pts)).transpose()?;
        self.change(|_, times| times.pts = pts)
    }

    /// Metas of the frame: names, each with a dictionary of values.
    #[getter]
    fn metas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let metadata = self.lock()?.times.metadata.clone();
        metas::to_python(py, &metadata)
    }

    /// Sets the metas: names with dictionaries of values.
    #[setter]
    fn set_metas(&self, metas: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let metadata = metas::to_metadata(metas)?;
        self.change(|_, times| times.metadata = metadata)
    }

    /// The sequence number, once it is published.
    #[getter]
    fn sequence(&self) -> PyResult<Option<u64>> {
        Ok(match self.lock()?.phase {
            Phase::Published(sequence) => Some(sequence),
            _ => None,
        })
    }

    /// Names a stream that writes the slot, besides those that got its planes by DLPack.
    fn used_on(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = NamedStream::of(stream)?;
        self.change(|writing, _| writing.used_on(stream))
    }

    /// Publishes the slot behind the work that writes it, and returns its sequence number. Waits
    /// for lossless readers without room, for `timeout` seconds at most; it can be repeated then.
    #[pyo3(signature = (timeout = None))]
    fn publish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let limit = Deadline::after(timeout)?;
        let (mut claim, times) = Claim::take(self)?;
        claim.publish(py, &times, limit)
    }

    /// Returns the slot to the exporter without publishing it.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_done()? {
            return Ok(());
        }
        Claim::take(self)?.0.discard(py);
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().writing()?;
        Ok(slf)
    }

    /// Publishes the slot, unless that was done; discards it if the block raised.
    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        if self.is_done()? {
            return Ok(());
        }
        let (mut claim, times) = match Claim::take(self) {
            // The exception of the block says more.
            Err(_) if kind.is_some() => return Ok(()),
            claim => claim?,
        };
        if kind.is_some() {
            claim.discard(py);
            return Ok(());
        }
        let published = claim.publish(py, &times, Deadline::after(None)?);
        if published.is_err() {
            claim.discard(py);
        }
        published.map(drop)
    }

    fn __repr__(&self) -> String {
        let Ok(state) = self.lock() else { return "<frameshare.Slot of the parent process>".into() };
        match state.phase {
            Phase::Writing(_) => "<frameshare.Slot being written>".into(),
            Phase::Publishing => "<frameshare.Slot being published>".into(),
            Phase::Published(sequence) => format!("<frameshare.Slot published as frame {sequence}>"),
            Phase::Discarded => "<frameshare.Slot discarded>".into(),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // A forked child leaves the slot and the GPU to its parent.
        let Ok(mut state) = self.lock() else { return };
        let phase = mem::replace(&mut state.phase, Phase::Discarded);
        drop(state);
        if let Phase::Writing(writing) = phase {
            // Work may be under way. The driver may block, so the GIL is released.
            Python::attach(|py| py.detach(|| self.free(&writing)));
        }
    }
}

/// A plane of a slot, writable.
#[pyclass(frozen, module = "frameshare", weakref)]
#[derive(Debug)]
pub struct SlotPlane {
    writing: Arc<Writing>,
    array: ArrayLayout,
    width: u32,
    height: u32,
    stride: isize,
}

impl SlotPlane {
    /// The number of the GPU that has the memory.
    fn gpu(&self) -> Option<usize> {
        self.writing.gpu.as_ref().map(|gpu| gpu.device().ordinal())
    }

    fn address(&self) -> usize {
        let start = match self.writing.frame.slot().address() {
            Address::Host(start) => start.as_ptr().expose_provenance(),
            Address::Device(start) => start as usize,
        };
        start + self.array.offset
    }

    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        interface::describe(py, &self.array, (self.address(), false))
    }
}

#[pymethods]
impl SlotPlane {
    /// Columns of pixels.
    #[getter]
    fn width(&self) -> u32 {
        self.width
    }

    /// Rows of pixels.
    #[getter]
    fn height(&self) -> u32 {
        self.height
    }

    /// Bytes from one row to the next.
    #[getter]
    fn stride(&self) -> isize {
        self.stride
    }

    /// Components of a pixel.
    #[getter]
    fn components(&self) -> i64 {
        self.array.components()
    }

    /// Type of the elements, as NumPy names it.
    #[getter]
    fn element(&self) -> &'static str {
        self.array.element.name()
    }

    /// Rows, columns, and components if there are several.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.array.shape)
    }

    /// Elements from one to the next in each dimension.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.array.element_strides()?)
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.gpu().is_some() {
            return Err(PyAttributeError::new_err(
                "the slot is in GPU memory: use DLPack or __cuda_array_interface__",
            ));
        }
        self.interface(py)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.gpu().is_none() {
            return Err(PyAttributeError::new_err(
                "the slot is in host memory: use DLPack or the buffer protocol",
            ));
        }
        // The protocol names no stream of the consumer. If `acquire` got one, that one writes.
        if self.writing.streams().is_empty() {
            self.writing.anywhere.store(true, Ordering::Relaxed);
        }
        let interface = self.interface(py)?;
        interface.set_item("stream", py.None())?;
        Ok(interface)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.gpu().map_or((dlpack::CPU, 0), |number| (dlpack::CUDA, number as i32))
    }

    /// The tensor of the plane. `stream` is the one that writes it.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        if copy == Some(true) || dl_device.is_some_and(|device| device != self.__dlpack_device__()) {
            return Err(PyBufferError::new_err(
                "a slot is written in place: a copy of it would not be published",
            ));
        }
        let stream = stream.filter(|stream| !stream.is_none());
        match (self.gpu(), stream) {
            (None, Some(_)) => return Err(PyValueError::new_err("stream must be None for host memory")),
            (Some(_), None) => self.writing.used_on(Handle::DEFAULT),
            (Some(_), Some(stream)) => match stream.extract::<i64>() {
                Ok(0) => {
                    return Err(PyValueError::new_err(
                        "stream 0 is ambiguous: 1 is the legacy default stream, 2 the one per thread",
                    ));
                }
                Ok(-1) => self.writing.anywhere.store(true, Ordering::Relaxed),
                _ => self.writing.used_on(NamedStream::of(stream)?),
            },
            (None, None) => {}
        }
        let shown = Shown {
            owner: self.writing.frame.slot().clone(),
            address: self.address() as u64,
            device: self.__dlpack_device__(),
            array: &self.array,
            flags: DlpackFlags::empty(),
        };
        shown.capsule(py, max_version)
    }

    /// # Safety
    /// Called by Python with a struct to be filled.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let plane = slf.get();
        if plane.gpu().is_some() {
            return Err(PyBufferError::new_err(
                "the slot is in GPU memory: use DLPack or __cuda_array_interface__",
            ));
        }
        let (owner, start) =
            (plane.writing.frame.slot().clone(), ptr::with_exposed_provenance_mut(plane.address()));
        // SAFETY: Python passed the struct; the plane is inside the slot, which keeps its memory.
        unsafe { buffer::fill_with(slf.as_any(), owner, start, &plane.array, false, view, flags) }
    }

    /// # Safety
    /// Called by Python with a struct that `__getbuffer__` has filled.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python passes the struct that `__getbuffer__` has filled, once.
        unsafe { buffer::release(view) }
    }

    fn __repr__(&self) -> String {
        let shape = super::array::shape_text(&self.array.shape);
        format!("<frameshare.SlotPlane {} {shape}>", self.array.element.name())
    }
}
