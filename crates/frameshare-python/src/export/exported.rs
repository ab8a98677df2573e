// SPDX-License-Identifier: MIT OR Apache-2.0

//! Memory of held frames as arrays: the base class of frames and planes.
//!
//! # Safety
//!
//! Calls of the buffer protocol come from Python with its contract.
#![allow(unsafe_code)]

use super::{
    buffer, dlpack,
    interface::{self, Kept},
};
use crate::{
    layout::ArrayLayout,
    layouts::{Layouts, PlaneArray},
    lease::{Holder, Lease},
};
use pyo3::{ffi, prelude::*, types::PyDict};
use std::{ffi::c_int, sync::Arc};

/// An array in a held frame: the frame, or a plane of it.
#[pyclass(frozen, subclass, name = "_Exported", module = "frameshare._frameshare")]
#[derive(Debug)]
pub struct Exported {
    holder: Arc<Holder>,
    shown: Shown,
    kept: Kept,
}

/// The part of a frame that is the array.
#[derive(Debug)]
pub enum Shown {
    /// All of it, if its planes touch.
    Frame(Arc<Layouts>),
    /// A plane.
    Plane(Arc<PlaneArray>),
}

impl Exported {
    /// A part of a held frame.
    pub fn new(holder: Arc<Holder>, shown: Shown) -> Self {
        Self { holder, shown, kept: Kept::default() }
    }

    fn array(&self) -> PyResult<(Arc<Lease>, &ArrayLayout)> {
        let (lease, array, _) = self.parts()?;
        Ok((lease, array))
    }

    /// Returns the frame's lease, the array in it, and what this object keeps of it.
    ///
    /// # Errors
    /// `ReleasedError` after the release, and if the planes of the frame do not touch.
    pub fn parts(&self) -> PyResult<(Arc<Lease>, &ArrayLayout, &Kept)> {
        let lease = self.holder.lease()?;
        let array = match &self.shown {
            Shown::Frame(layouts) => layouts.whole()?,
            Shown::Plane(plane) => &plane.array,
        };
        Ok((lease, array, &self.kept))
    }
}

#[pymethods]
impl Exported {
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
        let (lease, array, kept) = self.parts()?;
        interface::host(py, &lease, array, kept)
    }

    /// The array in GPU memory, version 3.
    #[getter]
    fn __cuda_array_interface__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyDict>> {
        let (lease, array, kept) = slf.get().parts()?;
        let object = slf.clone().unbind();
        let hand_out = move || {
            let (lease, array, kept) = object.get().parts()?;
            Ok(interface::hand_out(&lease, array, kept))
        };
        interface::gpu(slf.py(), &lease, array, kept, hand_out)
    }

    /// JAX's import of the frame by DLPack, for `jax.numpy.asarray`, which asks for this before the
    /// interfaces. Only for GPU memory: JAX takes host memory by `__array_interface__`.
    #[getter]
    fn __jax_array__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let lease = slf.get().holder.lease()?;
        interface::jax(slf.as_any(), &lease)
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
}
