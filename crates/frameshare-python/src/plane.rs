// SPDX-License-Identifier: MIT OR Apache-2.0

//! Planes of frames.
//!
//! # Safety
//!
//! The buffer protocol's calls come from Python with its contract.
#![allow(unsafe_code)]

use crate::{export::buffer, layout::ArrayLayout, lease::Holder};
use frameshare::video::PlaneLayout;
use pyo3::{exceptions::PyTypeError, ffi, prelude::*, types::PyTuple};
use std::{ffi::c_int, sync::Arc};

/// A plane of a frame: the luma, a chroma plane, or all of a packed image.
#[pyclass(frozen, module = "frameshare")]
#[derive(Debug)]
pub struct Plane {
    holder: Arc<Holder>,
    index: usize,
    place: PlaneLayout,
    array: ArrayLayout,
}

impl Plane {
    /// A plane of a held frame.
    pub fn new(holder: Arc<Holder>, index: usize, place: PlaneLayout, array: ArrayLayout) -> Self {
        Self { holder, index, place, array }
    }
}

#[pymethods]
impl Plane {
    /// Columns of pixels.
    #[getter]
    fn width(&self) -> u32 {
        self.place.width
    }

    /// Rows of pixels.
    #[getter]
    fn height(&self) -> u32 {
        self.place.height
    }

    /// Bytes from one row to the next; negative for bottom-up images.
    #[getter]
    fn stride(&self) -> isize {
        self.place.stride
    }

    /// Number of components of each pixel of the plane.
    #[getter]
    fn components(&self) -> i64 {
        self.array.components()
    }

    /// Name of the elements' type, as in NumPy.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.array.element.name()
    }

    /// Rows, columns, and components if there are several.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.array.shape)
    }

    /// Distances in elements.
    #[getter]
    fn strides<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.array.element_strides()?)
    }

    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        let lease = this.holder.lease()?;
        // SAFETY: Python's contract: `view` is to be filled.
        unsafe { buffer::fill(slf.as_any(), &lease, &this.array, view, flags) }
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
        let Self { index, array, .. } = self;
        format!(
            "<frameshare.Plane {index} of frame {}: {:?} {}>",
            self.holder.sequence(),
            array.shape,
            array.element.name()
        )
    }
}
