// SPDX-License-Identifier: MIT OR Apache-2.0

//! Slots that Python writes in place: the buffer protocol, `__array_interface__`, DLPack and
//! `__cuda_array_interface__` of their planes, all writable.
//!
//! A view that outlives the publication keeps the slot out of use, so that a late write reaches no
//! other frame than the one that it belongs to.
//!
//! # Safety
//!
//! Structs of Python and DLPack are filled as their contracts say. Addresses that go out are inside
//! the slot that the same struct holds. Dropping a slot touches no Python: deleters run on any
//! thread, without the GIL.
#![allow(unsafe_code)]

use super::{
    metas,
    number::number,
    shared::{Limit, Shared, Times},
    target::Video,
};
use crate::{
    cuda_stream::Handle,
    error::{OrRaise, ReleasedError},
    layout::{ArrayLayout, Element},
};
use frameshare::{
    cuda::{Context, Stream},
    exporter,
    memory::Address,
};
use frameshare_cuda::event::Event;
use pyo3::{
    exceptions::{PyAttributeError, PyBufferError, PyIndexError, PyValueError},
    ffi,
    prelude::*,
    types::{PyDict, PyInt, PyList, PyTuple},
};
use std::{
    ffi::{CStr, c_int, c_void},
    mem, ptr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// A stream that Python passed, with its object if it is more than a number.
#[derive(Debug)]
pub struct NamedStream {
    handle: Handle,
    object: Option<Py<PyAny>>,
}

impl NamedStream {
    /// Reads a stream. Runs code of the object, so no lock may be held.
    ///
    /// # Errors
    /// As [`Handle::of`].
    pub fn of(stream: &Bound<'_, PyAny>) -> PyResult<Self> {
        let object = (!stream.is_instance_of::<PyInt>()).then(|| stream.clone().unbind());
        Ok(Self { handle: Handle::of(stream)?, object })
    }
}

/// A slot that is being written, and the streams that do.
#[derive(Debug)]
pub struct Writing {
    slot: exporter::Slot,
    gpu: Option<Arc<Context>>,
    streams: Mutex<Vec<Handle>>,
    /// Objects that keep these streams. Dropping one without the interpreter only queues it.
    owners: Mutex<Vec<Py<PyAny>>>,
    /// An address went out without a stream.
    anywhere: AtomicBool,
}

impl Writing {
    /// A slot that was acquired just now.
    pub fn new(slot: exporter::Slot, gpu: Option<Arc<Context>>) -> Self {
        let (streams, owners) = (Mutex::default(), Mutex::default());
        Self { slot, gpu, streams, owners, anywhere: AtomicBool::new(false) }
    }

    fn streams(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names a stream that writes the slot.
    pub fn used_on(&self, stream: Handle) {
        let mut streams = self.streams();
        if !streams.contains(&stream) {
            streams.push(stream);
        }
    }

    /// Names a stream that Python passed, and keeps its object until the slot is dropped.
    pub fn used_on_named(&self, stream: NamedStream) {
        self.used_on(stream.handle);
        self.owners.lock().unwrap_or_else(PoisonError::into_inner).extend(stream.object);
    }

    /// Returns a stream behind all work that writes the slot; `None` for host memory.
    fn written(&self) -> PyResult<Option<Stream>> {
        let Some(gpu) = &self.gpu else { return Ok(None) };
        let streams = self.streams().clone();
        let anywhere = self.anywhere.load(Ordering::Relaxed);
        match (&streams[..], anywhere) {
            ([], false) => Handle::DEFAULT.open(gpu).map(Some),
            ([one], false) => one.open(gpu).map(Some),
            (several, _) => {
                let all = Stream::new(gpu).or_raise()?;
                for stream in several {
                    let stream = stream.open(gpu)?;
                    let written = Event::new(stream.context()).or_raise()?;
                    written.record(&stream).or_raise()?;
                    all.wait(&written).or_raise()?;
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
        slot.shared.check_process()?;
        let mut state = slot.lock();
        let Phase::Writing(writing) = &state.phase else { return Err(state.phase.error()) };
        let writing = Arc::clone(writing);
        state.phase = Phase::Publishing;
        Ok((Self { slot, next: Phase::Writing(Arc::clone(&writing)), writing }, state.times.clone()))
    }

    /// Publishes the slot; it is given back on an error.
    fn publish(&mut self, py: Python<'_>, times: &Times, limit: Limit) -> PyResult<u64> {
        let (shared, writing) = (&self.slot.shared, &self.writing);
        let size = self.slot.video()?.size;
        let stream = py.detach(|| writing.written())?;
        let sequence = shared.publish(py, &writing.slot, size, stream.as_ref(), times, limit)?;
        self.next = Phase::Published(sequence);
        Ok(sequence)
    }

    /// Frees the slot behind the work that may write it.
    fn discard(&mut self, py: Python<'_>) -> PyResult<()> {
        self.next = Phase::Discarded;
        py.detach(|| self.slot.free(&self.writing))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.slot.lock().phase = mem::replace(&mut self.next, Phase::Discarded);
    }
}

impl Slot {
    /// A slot that was acquired just now.
    pub fn new(shared: Arc<Shared>, writing: Writing, times: Times) -> Self {
        let state = State { phase: Phase::Writing(Arc::new(writing)), times };
        Self { shared, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes a slot while no thread can publish it.
    fn change<T>(&self, change: impl FnOnce(&Arc<Writing>, &mut Times) -> T) -> PyResult<T> {
        self.shared.check_process()?;
        let State { phase, times } = &mut *self.lock();
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
        self.shared.check_process()?;
        Ok(matches!(self.lock().phase, Phase::Published(_) | Phase::Discarded))
    }

    /// Frees the slot behind the work that may write it.
    fn free(&self, writing: &Writing) -> PyResult<()> {
        let Some(stream) = writing.written()? else { return Ok(()) };
        self.shared.engine()?.drop_after(&stream, Box::new(writing.slot.clone())).or_raise()
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
    fn pts(&self) -> Option<u64> {
        self.lock().times.pts
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
        let metadata = self.lock().times.metadata.clone();
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
    fn sequence(&self) -> Option<u64> {
        match self.lock().phase {
            Phase::Published(sequence) => Some(sequence),
            _ => None,
        }
    }

    /// Names a stream that writes the slot, besides those that got its planes by DLPack.
    fn used_on(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let stream = NamedStream::of(stream)?;
        self.change(|writing, _| writing.used_on_named(stream))
    }

    /// Publishes the slot behind the work that writes it, and returns its sequence number. Waits
    /// for lossless readers without room, for `timeout` seconds at most; it can be repeated then.
    #[pyo3(signature = (timeout = None))]
    fn publish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<u64> {
        let limit = Limit::after(timeout)?;
        let (mut claim, times) = Claim::take(self)?;
        claim.publish(py, &times, limit)
    }

    /// Returns the slot to the exporter without publishing it.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_done()? {
            return Ok(());
        }
        Claim::take(self)?.0.discard(py)
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
            return claim.discard(py);
        }
        let published = claim.publish(py, &times, Limit::after(None)?);
        if published.is_err() {
            claim.discard(py)?;
        }
        published.map(drop)
    }

    fn __repr__(&self) -> String {
        match self.lock().phase {
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
        if self.shared.check_process().is_err() {
            return;
        }
        let phase = mem::replace(&mut self.lock().phase, Phase::Discarded);
        if let Phase::Writing(writing) = phase {
            // Work may be under way. An error means that the GPU has failed, which ends the work.
            // The driver may block, so the GIL is released.
            let _ = Python::attach(|py| py.detach(|| self.free(&writing)));
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
        let start = match self.writing.slot.address() {
            Address::Host(start) => start.as_ptr().expose_provenance(),
            Address::Device(start) => start as usize,
        };
        start + self.array.offset
    }

    fn letter(&self) -> &'static str {
        match self.array.element {
            Element::U8 => "|u1",
            Element::U16 if cfg!(target_endian = "little") => "<u2",
            Element::U16 => ">u2",
            Element::U32 if cfg!(target_endian = "little") => "<u4",
            Element::U32 => ">u4",
        }
    }

    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.array.shape)?)?;
        interface.set_item("strides", PyTuple::new(py, &self.array.strides)?)?;
        interface.set_item("typestr", self.letter())?;
        interface.set_item("data", (self.address(), false))?;
        Ok(interface)
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

    fn __dlpack_device__(&self) -> (c_int, usize) {
        self.gpu().map_or((HOST, 0), |number| (GPU, number))
    }

    /// The tensor of the plane. `stream` is the one that writes it.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(c_int, usize)>,
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
                _ => self.writing.used_on_named(NamedStream::of(stream)?),
            },
            (None, None) => {}
        }
        let managed = Box::new(Managed::new(self)?);
        if max_version.is_some_and(|(major, _)| major >= 1) {
            let versioned = Box::new(Versioned {
                version: [1, 0],
                context: Box::into_raw(managed),
                deleter: Some(delete_versioned),
                flags: 0,
                tensor: Tensor::default(),
            });
            let raw = Box::into_raw(versioned);
            // SAFETY: both were just leaked, and are freed by the deleter.
            unsafe { (*raw).tensor = (*(*raw).context).tensor() };
            // SAFETY: as above; the destructor deletes a tensor that was not consumed.
            return unsafe { capsule(py, raw.cast(), VERSIONED, destroy_versioned) };
        }
        let unversioned = Box::new(Unversioned {
            tensor: Tensor::default(),
            context: Box::into_raw(managed),
            deleter: Some(delete_unversioned),
        });
        let raw = Box::into_raw(unversioned);
        // SAFETY: as above.
        unsafe { (*raw).tensor = (*(*raw).context).tensor() };
        // SAFETY: as above.
        unsafe { capsule(py, raw.cast(), UNVERSIONED, destroy_unversioned) }
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
        let asks = |flag: c_int| flags & flag == flag;
        let is_c = plane.array.is_c_contiguous();
        if asks(ffi::PyBUF_F_CONTIGUOUS)
            || !is_c
                && (!asks(ffi::PyBUF_STRIDES)
                    || asks(ffi::PyBUF_C_CONTIGUOUS)
                    || asks(ffi::PyBUF_ANY_CONTIGUOUS))
        {
            return Err(PyBufferError::new_err(
                "the rows of the plane have padding: the consumer has to take strides",
            ));
        }
        let size = plane.array.element.size() as ffi::Py_ssize_t;
        let numbers = |of: &[i64]| of.iter().map(|number| *number as ffi::Py_ssize_t).collect::<Vec<_>>();
        let (shape, strides) = (numbers(&plane.array.shape), numbers(&plane.array.strides));
        let (count, dimensions) = (shape.iter().product::<ffi::Py_ssize_t>(), shape.len());
        let exported = Box::into_raw(Box::new(Buffer { shape, strides, _slot: plane.writing.slot.clone() }));
        let format: &CStr = match plane.array.element {
            Element::U8 => c"B",
            Element::U16 => c"H",
            Element::U32 => c"I",
        };
        let start = ptr::with_exposed_provenance_mut::<c_void>(plane.address());
        // SAFETY: Python passed the struct; the arrays live until `__releasebuffer__` frees them,
        // and the memory as long.
        unsafe {
            let view = &mut *view;
            view.buf = start;
            view.len = count * size;
            view.itemsize = size;
            view.readonly = 0;
            view.ndim = dimensions as c_int;
            view.format = if asks(ffi::PyBUF_FORMAT) { format.as_ptr().cast_mut() } else { ptr::null_mut() };
            view.shape = if asks(ffi::PyBUF_ND) { (*exported).shape.as_mut_ptr() } else { ptr::null_mut() };
            view.strides =
                if asks(ffi::PyBUF_STRIDES) { (*exported).strides.as_mut_ptr() } else { ptr::null_mut() };
            view.suboffsets = ptr::null_mut();
            view.internal = exported.cast();
            view.obj = slf.into_any().into_ptr();
        }
        Ok(())
    }

    /// # Safety
    /// Called by Python with a struct that `__getbuffer__` has filled.
    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: `__getbuffer__` stored the pointer of a box.
        drop(unsafe { Box::from_raw((*view).internal.cast::<Buffer>()) });
    }

    fn __repr__(&self) -> String {
        let shape = super::array::shape_text(&self.array.shape);
        format!("<frameshare.SlotPlane {} {shape}>", self.array.element.name())
    }
}

/// Arrays and memory of a filled buffer.
struct Buffer {
    shape: Vec<ffi::Py_ssize_t>,
    strides: Vec<ffi::Py_ssize_t>,
    _slot: exporter::Slot,
}

// DLPack 1.0.

const HOST: c_int = 1;
const GPU: c_int = 2;
const UNSIGNED: u8 = 1;
const VERSIONED: &CStr = c"dltensor_versioned";
const UNVERSIONED: &CStr = c"dltensor";

#[repr(C)]
#[derive(Debug)]
struct Tensor {
    data: *mut c_void,
    device_type: c_int,
    device_id: c_int,
    ndim: c_int,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

impl Default for Tensor {
    fn default() -> Self {
        Self {
            data: ptr::null_mut(),
            device_type: 0,
            device_id: 0,
            ndim: 0,
            code: UNSIGNED,
            bits: 8,
            lanes: 1,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        }
    }
}

#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut Managed,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: Tensor,
}

#[repr(C)]
struct Unversioned {
    tensor: Tensor,
    context: *mut Managed,
    deleter: Option<unsafe extern "C" fn(*mut Unversioned)>,
}

/// Arrays and memory of a tensor.
struct Managed {
    shape: Vec<i64>,
    strides: Vec<i64>,
    address: usize,
    device: (c_int, usize),
    bits: u8,
    _slot: exporter::Slot,
}

impl Managed {
    fn new(plane: &SlotPlane) -> PyResult<Self> {
        Ok(Self {
            shape: plane.array.shape.clone(),
            strides: plane.array.element_strides()?,
            address: plane.address(),
            device: plane.__dlpack_device__(),
            bits: 8 * plane.array.element.size() as u8,
            _slot: plane.writing.slot.clone(),
        })
    }

    fn tensor(&mut self) -> Tensor {
        Tensor {
            data: ptr::with_exposed_provenance_mut(self.address),
            device_type: self.device.0,
            device_id: self.device.1 as c_int,
            ndim: self.shape.len() as c_int,
            bits: self.bits,
            shape: self.shape.as_mut_ptr(),
            strides: self.strides.as_mut_ptr(),
            ..Tensor::default()
        }
    }
}

/// # Safety
/// The tensor is one of `__dlpack__`, and is deleted once.
unsafe extern "C" fn delete_versioned(tensor: *mut Versioned) {
    // SAFETY: both are boxes of `__dlpack__`.
    unsafe { drop(Box::from_raw(Box::from_raw(tensor).context)) };
}

/// # Safety
/// As [`delete_versioned`].
unsafe extern "C" fn delete_unversioned(tensor: *mut Unversioned) {
    // SAFETY: both are boxes of `__dlpack__`.
    unsafe { drop(Box::from_raw(Box::from_raw(tensor).context)) };
}

/// # Safety
/// Called by Python with a capsule of [`capsule`]. A consumer renames a capsule that it has taken.
unsafe extern "C" fn destroy_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            delete_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// # Safety
/// As [`destroy_versioned`].
unsafe extern "C" fn destroy_unversioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as above.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, UNVERSIONED.as_ptr()) == 1 {
            delete_unversioned(ffi::PyCapsule_GetPointer(capsule, UNVERSIONED.as_ptr()).cast());
        }
    }
}

/// Returns a capsule.
///
/// # Safety
/// `destroy` frees what `pointer` points to.
unsafe fn capsule<'py>(
    py: Python<'py>,
    pointer: *mut c_void,
    name: &'static CStr,
    destroy: unsafe extern "C" fn(*mut ffi::PyObject),
) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: the name is a C string that lives forever; the call returns a new reference or null.
    unsafe { Bound::from_owned_ptr_or_err(py, ffi::PyCapsule_New(pointer, name.as_ptr(), Some(destroy))) }
}
