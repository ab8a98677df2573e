// SPDX-License-Identifier: MIT OR Apache-2.0

//! `__array_interface__` and `__cuda_array_interface__`, version 3.
//!
//! Both hand out an address, and consumers hold the object that they asked. So that object holds a
//! view ([`Kept`]) from then on.
//!
//! The one of a leased frame in GPU memory names no stream of its consumer: the release has to
//! follow all work of the context, and that record invalidates captures of other code. So the
//! address goes out only when it is read ([`Address`]): `hasattr` and libraries that only probe for
//! the interface use nothing.

use super::consumer::device;
use crate::{
    error::OrRaise,
    gpu::{Borrowed, Gpu},
    layout::ArrayLayout,
    lease::{Lease, View},
    memory::Memory,
};
use frameshare::reader;
use pyo3::{
    exceptions::{PyAttributeError, PyTypeError},
    prelude::*,
    types::{PyDict, PyIterator, PyMemoryView, PyTuple},
};
use std::{
    mem,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// The view of an object whose address went out, and the stream that was named for it.
#[derive(Debug, Default)]
pub struct Kept {
    view: OnceLock<View>,
    stream: OnceLock<Borrowed>,
}

/// Returns `__array_interface__`.
///
/// # Errors
/// `AttributeError` for GPU memory.
pub fn host<'py>(
    py: Python<'py>,
    lease: &Arc<Lease>,
    array: &ArrayLayout,
    kept: &Kept,
) -> PyResult<Bound<'py, PyDict>> {
    let start = lease.memory().host_start().ok_or_else(|| {
        PyAttributeError::new_err(
            "the frame is in GPU memory: it has __cuda_array_interface__ and __dlpack__",
        )
    })?;
    kept.view.get_or_init(|| View::of(lease));
    let is_read_only = lease.memory().leased().is_some();
    describe(py, array, (first(array, start.as_ptr().addr() as u64), is_read_only))
}

/// Returns `__cuda_array_interface__`. Its `stream` is one that waits for the frame, or `None` if
/// the frame is written. `hand_out` calls [`hand_out`] when the address of a leased frame is read.
///
/// # Errors
/// `AttributeError` for host memory.
pub fn gpu<'py>(
    py: Python<'py>,
    lease: &Arc<Lease>,
    array: &ArrayLayout,
    kept: &Kept,
    hand_out: impl Fn() -> PyResult<u64> + Send + Sync + 'static,
) -> PyResult<Bound<'py, PyDict>> {
    let (described, stream) = match (lease.memory(), lease.gpu()) {
        (Memory::Leased(frame), Some(gpu)) => {
            let stream = py.detach(|| written(frame, gpu, kept))?;
            (describe(py, array, Address(Mutex::new(Data::Unread(Box::new(hand_out)))))?, stream)
        }
        (Memory::Gpu(copy), _) => {
            kept.view.get_or_init(|| View::of(lease));
            (describe(py, array, (first(array, copy.start()), false))?, None)
        }
        _ => {
            return Err(PyAttributeError::new_err(
                "the frame is in host memory: it has __array_interface__ and __dlpack__",
            ));
        }
    };
    described.set_item("stream", stream)?;
    Ok(described)
}

/// Returns the handle of a stream that waits for the frame; `None` if it is written.
fn written(frame: &reader::Frame, gpu: &Arc<Gpu>, kept: &Kept) -> PyResult<Option<usize>> {
    if frame.is_written().or_raise()? {
        return Ok(None);
    }
    let own = match kept.stream.get() {
        Some(own) => own,
        None => {
            let new = gpu.stream().or_raise()?;
            kept.stream.get_or_init(|| new)
        }
    };
    frame.address_on(own).or_raise()?;
    Ok(Some(own.as_raw().addr()))
}

/// The entry `data` of a leased frame in GPU memory: a sequence of the address and `True`, for
/// read-only. Reading it makes the object a view of the frame, whose release then follows all work
/// of the context.
#[pyclass(frozen, sequence, module = "frameshare._frameshare")]
pub struct Address(Mutex<Data>);

enum Data {
    /// Reads the address, which makes the object a view.
    Unread(Box<dyn Fn() -> PyResult<u64> + Send + Sync>),
    Read(u64),
}

/// Returns the address of a leased frame in GPU memory, of which the object is a view from now on.
pub fn hand_out(lease: &Arc<Lease>, array: &ArrayLayout, kept: &Kept) -> u64 {
    let start = lease.memory().leased().map_or(0, |frame| device(frame.address()));
    kept.view.get_or_init(|| View::of(lease));
    first(array, start)
}

impl Address {
    fn read<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let mut data = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (address, unread) = match &*data {
            Data::Read(address) => (*address, None),
            Data::Unread(hand_out) => {
                let address = hand_out()?;
                (address, Some(mem::replace(&mut *data, Data::Read(address))))
            }
        };
        // Unlocked before the object is dropped.
        drop(data);
        drop(unread);
        (address, true).into_pyobject(py)
    }
}

#[pymethods]
impl Address {
    fn __len__(&self) -> usize {
        2
    }

    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.read(index.py())?.as_any().get_item(index)
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyIterator>> {
        self.read(py)?.try_iter()
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> PyResult<bool> {
        self.read(other.py())?.eq(other)
    }
}

/// The address of an array's first element in a frame.
fn first(array: &ArrayLayout, start: u64) -> u64 {
    start + array.offset as u64
}

/// Returns what both interfaces have in common. `data` is the address of the first element, and
/// whether it is read-only.
///
/// # Errors
/// None but of Python's memory.
pub fn describe<'py>(
    py: Python<'py>,
    array: &ArrayLayout,
    data: impl IntoPyObject<'py>,
) -> PyResult<Bound<'py, PyDict>> {
    let order = if array.element.size() == 1 {
        '|'
    } else if cfg!(target_endian = "little") {
        '<'
    } else {
        '>'
    };
    let described = PyDict::new(py);
    described.set_item("shape", PyTuple::new(py, &array.shape)?)?;
    described.set_item("typestr", format!("{order}u{}", array.element.size()))?;
    described.set_item("data", data)?;
    described.set_item("strides", PyTuple::new(py, &array.strides)?)?;
    described.set_item("version", 3)?;
    Ok(described)
}

/// Returns a function without arguments that imports an object by JAX's DLPack. JAX refuses the
/// entry `data` of `__cuda_array_interface__`, which is no tuple: see [`Address`].
///
/// # Errors
/// `AttributeError` for host memory, and if JAX is not imported.
pub fn jax<'py>(object: &Bound<'py, PyAny>, lease: &Lease) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let modules = py.import("sys")?.getattr("modules")?;
    match modules.get_item("jax") {
        Ok(jax) if lease.memory().is_on_gpu() => {
            let import = jax.getattr("dlpack")?.getattr("from_dlpack")?;
            py.import("functools")?.call_method1("partial", (import, object))
        }
        _ => Err(PyAttributeError::new_err("__jax_array__ is for frames in GPU memory, and for JAX")),
    }
}

/// Returns a NumPy array of an object that has the buffer protocol.
///
/// # Errors
/// `TypeError` for GPU memory, of which NumPy would make an array of one object otherwise.
pub fn numpy<'py>(
    object: &Bound<'py, PyAny>,
    lease: &Lease,
    dtype: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    if lease.memory().is_on_gpu() {
        return Err(PyTypeError::new_err(
            "the frame is in GPU memory: use torch.from_dlpack or cupy.from_dlpack, or a copy: \
             numpy.from_dlpack(..., device=\"cpu\")",
        ));
    }
    let (py, arguments) = (object.py(), PyDict::new(object.py()));
    arguments.set_item("dtype", dtype)?;
    if let Some(copy) = copy {
        arguments.set_item("copy", copy)?;
    }
    let memory = PyMemoryView::from(object)?;
    py.import("numpy")?.call_method("array", (memory,), Some(&arguments))
}
