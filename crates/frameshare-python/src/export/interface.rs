// SPDX-License-Identifier: MIT OR Apache-2.0

//! `__array_interface__` and `__cuda_array_interface__`, version 3.
//!
//! Both hand out an address, and consumers hold the object that they asked. So that object holds a
//! view ([`Kept`]) from then on.

use super::consumer::Consumer;
use crate::{
    error::OrRaise,
    gpu::Borrowed,
    layout::ArrayLayout,
    lease::{Lease, View},
    memory::Memory,
};
use pyo3::{
    exceptions::{PyAttributeError, PyTypeError},
    prelude::*,
    types::{PyDict, PyMemoryView, PyTuple},
};
use std::sync::{Arc, OnceLock};

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
    describe(py, array, first(array, start.as_ptr().addr() as u64), lease.memory().leased().is_some())
}

/// Returns `__cuda_array_interface__`. Its `stream` is one that waits for the frame, or `None` if
/// the frame is written.
///
/// # Errors
/// `AttributeError` for host memory.
pub fn gpu<'py>(
    py: Python<'py>,
    lease: &Arc<Lease>,
    array: &ArrayLayout,
    kept: &Kept,
) -> PyResult<Bound<'py, PyDict>> {
    let gpu = lease.gpu().ok_or_else(|| {
        PyAttributeError::new_err("the frame is in host memory: it has __array_interface__ and __dlpack__")
    })?;
    let (start, stream) = py.detach(|| match lease.memory() {
        Memory::Leased(frame) => {
            let mut stream = None;
            if !frame.is_written().or_raise()? {
                let own = match kept.stream.get() {
                    Some(own) => own,
                    None => {
                        let new = gpu.stream().or_raise()?;
                        kept.stream.get_or_init(|| new)
                    }
                };
                frame.wait_on(own).or_raise()?;
                stream = Some(own.as_raw().addr());
            }
            Ok::<_, PyErr>((Consumer::Unordered.address(frame, gpu)?, stream))
        }
        Memory::Gpu(copy) => Ok((copy.start(), None)),
        Memory::Host(copy) => Ok((copy.start().as_ptr().addr() as u64, None)),
    })?;
    kept.view.get_or_init(|| View::of(lease));
    let described = describe(py, array, first(array, start), lease.memory().leased().is_some())?;
    described.set_item("stream", stream)?;
    Ok(described)
}

/// The address of an array's first element in a frame.
fn first(array: &ArrayLayout, start: u64) -> u64 {
    start + array.offset as u64
}

/// Returns what both interfaces have in common, for an array with this first element.
///
/// # Errors
/// None but of Python's memory.
pub fn describe<'py>(
    py: Python<'py>,
    array: &ArrayLayout,
    first: u64,
    is_read_only: bool,
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
    described.set_item("data", (first, is_read_only))?;
    described.set_item("strides", PyTuple::new(py, &array.strides)?)?;
    described.set_item("version", 3)?;
    Ok(described)
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
