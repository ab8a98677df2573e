// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA streams of other libraries: a number, or an object of PyTorch, CuPy, Numba or cuda.core.
//!
//! # Safety
//!
//! A stream that Python passes is one of the process's, and lives as long as its object. Callers
//! keep that object for as long as they use the stream.
#![allow(unsafe_code)]

use crate::error::OrRaise;
use frameshare::cuda::{Context, Stream};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::PyInt,
};
use std::{ffi::c_void, ptr, sync::Arc};

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
        match self.0 {
            // SAFETY: the context has both streams as long as it lives.
            LEGACY => Ok(unsafe { Stream::handed_in(context, ptr::null_mut(), ()) }),
            PER_THREAD => {
                let handle = ptr::without_provenance_mut::<c_void>(PER_THREAD);
                // SAFETY: as above.
                Ok(unsafe { Stream::handed_in(context, handle, ()) })
            }
            number => {
                let handle = ptr::with_exposed_provenance_mut::<c_void>(number);
                // SAFETY: see the header.
                unsafe { Stream::found(handle, context) }.or_raise()
            }
        }
    }
}

/// Returns the stream on which an array's library works at present: PyTorch's and CuPy's current
/// one. `None` for libraries that name none.
///
/// # Errors
/// Those of the library.
pub fn current_of(array: &Bound<'_, PyAny>, device: i64) -> PyResult<Option<Handle>> {
    let py = array.py();
    let module = array.get_type().module()?.to_string();
    let stream = match module.split('.').next() {
        Some("torch") => py.import("torch.cuda")?.call_method1("current_stream", (device,))?,
        Some("cupy") => py.import("cupy.cuda")?.call_method0("get_current_stream")?,
        _ => return Ok(None),
    };
    Handle::of(&stream).map(Some)
}
