// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA streams of other libraries: a number, or an object of PyTorch, CuPy, Numba or cuda.core.
//!
//! # Safety
//!
//! A stream that Python passes is one of the process's, and lives as long as its object, which a
//! [`NamedStream`] keeps. One that comes as a number alone, without an object that can be found,
//! lives as long as the documentation asks for.
#![allow(unsafe_code)]

use crate::error::OrRaise;
use frameshare::cuda::{Context, Stream};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::PyInt,
};
use std::{any::Any, ffi::c_void, ptr, sync::Arc};

/// CUDA's numbers of the legacy default stream and of the one per thread.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;

/// The handle of a stream, by CUDA's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handle(usize);

impl Handle {
    /// The legacy default stream.
    pub const DEFAULT: Self = Self(LEGACY);
    /// The default stream of each thread.
    pub const PER_THREAD: Self = Self(PER_THREAD);

    /// Returns the handle of a stream that Python passed, where 0 is the legacy default stream.
    ///
    /// # Errors
    /// `TypeError` for other objects, `ValueError` for negative numbers.
    pub fn of(stream: &Bound<'_, PyAny>) -> PyResult<Self> {
        let invalid = || {
            PyValueError::new_err(format!("stream is {stream}: pass a cudaStream_t, which is not negative"))
        };
        if stream.is_instance_of::<PyInt>() {
            return stream.extract::<usize>().map(Self::numbered).map_err(|_| invalid());
        }
        // Numbers of NumPy.
        if let Ok(number) = stream.extract::<i64>() {
            return usize::try_from(number).map(Self::numbered).map_err(|_| invalid());
        }
        // The protocol of cuda.core: (version, handle).
        if let Ok(protocol) = stream.getattr("__cuda_stream__") {
            let found = if protocol.is_callable() { protocol.call0()? } else { protocol };
            let (_version, handle) = found.extract::<(i64, usize)>()?;
            return Ok(Self::numbered(handle));
        }
        // PyTorch, CuPy, Numba.
        for name in ["cuda_stream", "ptr", "handle"] {
            if let Ok(handle) = stream.getattr(name) {
                // Numba's is a c_void_p, of which None is the value of NULL.
                let handle = handle.getattr("value").unwrap_or(handle);
                if handle.is_none() {
                    return Ok(Self::DEFAULT);
                }
                if let Ok(number) = handle.extract() {
                    return Ok(Self::numbered(number));
                }
            }
        }
        Err(PyTypeError::new_err(format!(
            "{} is no CUDA stream: pass a cudaStream_t as a number, a stream of PyTorch, CuPy or Numba, or an \
             object with __cuda_stream__",
            stream.get_type().name()?
        )))
    }

    /// The handle as the driver takes it: NULL is the legacy default stream.
    pub fn raw(self) -> *mut c_void {
        if self == Self::DEFAULT { ptr::null_mut() } else { ptr::with_exposed_provenance_mut(self.0) }
    }

    fn numbered(number: usize) -> Self {
        if number == 0 { Self::DEFAULT } else { Self(number) }
    }

    /// The number that the array API standard gives the stream.
    pub fn number(self) -> usize {
        self.0
    }

    /// Returns the stream, to be used from this thread.
    ///
    /// # Errors
    /// Those of the driver, for a number that is no stream.
    pub fn open(self, context: &Arc<Context>) -> PyResult<Stream> {
        self.open_with(context, ())
    }

    /// As [`Handle::open`]. The stream has the objects that keep it alive.
    ///
    /// # Errors
    /// As [`Handle::open`].
    pub fn open_with(self, context: &Arc<Context>, objects: impl Any + Send + Sync) -> PyResult<Stream> {
        let found = match self {
            Self::DEFAULT | Self::PER_THREAD => None,
            // SAFETY: see the header.
            _ => Some(unsafe { Stream::found(self.raw(), context) }.or_raise()?),
        };
        let context = found.as_ref().map_or(context, Stream::context);
        // SAFETY: see the header; the context has its default streams as long as it lives.
        Ok(unsafe { Stream::handed_in(context, self.raw(), objects) })
    }

    /// Returns CuPy's object of the stream, if it is CuPy's current one: CuPy names its streams by
    /// number, and destroys them with their objects. Streams of PyTorch and JAX live as long as the
    /// process, and Numba passes objects.
    fn object(self, py: Python<'_>) -> Option<Py<PyAny>> {
        if matches!(self, Self::DEFAULT | Self::PER_THREAD) {
            return None;
        }
        let modules = py.import("sys").ok()?.getattr("modules").ok()?;
        let cupy = modules.get_item("cupy").ok()?;
        let current = cupy.getattr("cuda").ok()?.call_method0("get_current_stream").ok()?;
        (Self::of(&current).ok()? == self).then(|| current.unbind())
    }
}

/// A stream that Python named, with the object that keeps it alive, if there is one.
#[derive(Debug)]
pub struct NamedStream {
    pub handle: Handle,
    /// Dropping it without the interpreter only queues it.
    pub object: Option<Py<PyAny>>,
}

impl From<Handle> for NamedStream {
    fn from(handle: Handle) -> Self {
        Self { handle, object: None }
    }
}

impl NamedStream {
    /// Reads a stream. Runs code of the object, so no lock may be held.
    ///
    /// # Errors
    /// As [`Handle::of`].
    pub fn of(stream: &Bound<'_, PyAny>) -> PyResult<Self> {
        let handle = Handle::of(stream)?;
        // Other objects that convert to integers may own the stream.
        let is_number = stream.is_exact_instance_of::<PyInt>();
        let object = if is_number { handle.object(stream.py()) } else { Some(stream.clone().unbind()) };
        Ok(Self { handle, object })
    }
}

/// Returns the stream on which an array's library works at present on the array's device: PyTorch's
/// and CuPy's current one. `None` for libraries that name none.
///
/// # Errors
/// Those of the library.
pub fn current_of(array: &Bound<'_, PyAny>, device: i64) -> PyResult<Option<Handle>> {
    let py = array.py();
    let module = array.get_type().module()?.to_string();
    let stream = match module.split('.').next() {
        Some("torch") => py.import("torch.cuda")?.call_method1("current_stream", (device,))?,
        Some("cupy") => py.import("cupy.cuda")?.call_method1("get_current_stream", (device,))?,
        _ => return Ok(None),
    };
    Handle::of(&stream).map(Some)
}
