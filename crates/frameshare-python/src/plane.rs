// SPDX-License-Identifier: MIT OR Apache-2.0

//! Planes of frames.
//!
//! # Safety
//!
//! Calls of the buffer protocol come from Python with its contract.
#![allow(unsafe_code)]

use crate::{
    export::{
        buffer, dlpack,
        interface::{self, Kept},
    },
    layout::ArrayLayout,
    layouts::PlaneArray,
    lease::{Holder, Lease},
};
use pyo3::{
    exceptions::PyTypeError,
    ffi,
    prelude::*,
    types::{PyDict, PyTuple},
};
use std::{ffi::c_int, sync::Arc};

/// A plane of a frame: the luma, a chroma plane, or all of a packed image.
#[pyclass(frozen, module = "frameshare")]
#[derive(Debug)]
pub struct Plane {
    holder: Arc<Holder>,
    index: usize,
    plane: Arc<PlaneArray>,
    kept: Kept,
}

impl Plane {
    /// A plane of a held frame.
    pub fn new(holder: Arc<Holder>, index: usize, plane: Arc<PlaneArray>) -> Self {
        Self { holder, index, plane, kept: Kept::default() }
    }

    fn array(&self) -> PyResult<(Arc<Lease>, &ArrayLayout)> {
        Ok((self.holder.lease()?, &self.plane.array))
    }
}

#[pymethods]
impl Plane {
    /// Columns of pixels.
    #[getter]
    fn width(&self) -> u32 {
        self.plane.place.width
    }

    /// Rows of pixels.
    #[getter]
    fn height(&self) -> u32 {
        self.plane.place.height
    }

    /// Bytes from one row to the next; negative for bottom-up images.
    #[getter]
    fn stride(&self) -> isize {
        self.plane.place.stride
    }

    /// Number of components of each pixel of the plane.
    #[getter]
    fn components(&self) -> i64 {
        self.plane.array.components()
    }

    /// Name of the elements' type, as in NumPy: "uint8". Not `dtype`, which libraries take for an
    /// object of NumPy's.
    #[getter]
    fn element(&self) -> &'static str {
        self.plane.array.element.name()
    }

    /// Rows, columns, and components if there are several.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.plane.array.shape)
    }

    /// Distances in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.plane.array.element_strides()?)
    }

    /// The kind and the number of the device, as DLPack has them: (1, 0) is the host, (2, n) GPU n.
    fn __dlpack_device__(&self) -> PyResult<(i32, i32)> {
        Ok(dlpack::device(&*self.holder.lease()?))
    }

    /// Returns a capsule of the array: see the array API. A GPU consumer's stream waits for the
    /// frame, and the frame's release for the stream.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (lease, array) = self.array()?;
        dlpack::export(py, &lease, array, &dlpack::Request { stream, max_version, dl_device, copy })
    }

    /// The array in host memory.
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (lease, array) = self.array()?;
        interface::host(py, &lease, array, &self.kept)
    }

    /// The array in GPU memory, version 3.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (lease, array) = self.array()?;
        interface::gpu(py, &lease, array, &self.kept)
    }

    /// Returns a NumPy array of host memory. NumPy calls this where the buffer protocol has failed.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (lease, _) = slf.get().array()?;
        interface::numpy(slf.as_any(), &lease, dtype, copy)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let (lease, array) = slf.get().array()?;
        // SAFETY: Python's contract: `view` is to be filled.
        unsafe { buffer::fill(slf.as_any(), &lease, array, view, flags) }
    }

    unsafe fn __releasebuffer__(&self, view: *mut ffi::Py_buffer) {
        // SAFETY: Python's contract: `view` was filled by `__getbuffer__`, and is released once.
        unsafe { buffer::release(view) }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "planes cannot be pickled: their memory is the exporter's; pickle a copy, or let the other \
             process open the stream",
        ))
    }

    fn __repr__(&self) -> String {
        let (index, array) = (self.index, &self.plane.array);
        format!(
            "<frameshare.Plane {index} of frame {}: {:?} {}>",
            self.holder.sequence(),
            array.shape,
            array.element.name()
        )
    }
}
