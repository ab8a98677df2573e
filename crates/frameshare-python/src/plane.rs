// SPDX-License-Identifier: MIT OR Apache-2.0

//! Planes of frames.

use crate::{
    export::exported::{Exported, Shown},
    layouts::PlaneArray,
    lease::Holder,
};
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyTuple};
use std::sync::Arc;

/// A plane of a frame: the luma, a chroma plane, or all of a packed image.
#[pyclass(extends = Exported, frozen, module = "frameshare")]
#[derive(Debug)]
pub struct Plane {
    holder: Arc<Holder>,
    index: usize,
    plane: Arc<PlaneArray>,
}

impl Plane {
    /// A plane of a held frame.
    pub fn new(holder: Arc<Holder>, index: usize, plane: Arc<PlaneArray>) -> Self {
        Self { holder, index, plane }
    }
}

impl<'py> IntoPyObject<'py> for Plane {
    type Target = Self;
    type Output = Bound<'py, Self>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        let exported = Exported::new(Arc::clone(&self.holder), Shown::Plane(Arc::clone(&self.plane)));
        Bound::new(py, (self, exported))
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
