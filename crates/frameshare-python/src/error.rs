// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of the engine as exceptions of the package, with the engine's texts.

use frameshare::{
    EndpointError, Reason, cuda,
    fence::FenceError,
    reader::{ConnectError, OpenError, ReadError},
    video::VideoError,
};
use pyo3::{PyErr, exceptions::PyValueError};
use std::io;

/// The exceptions of `frameshare._errors`.
mod classes {
    use pyo3::import_exception;

    import_exception!(frameshare._errors, Error);
    import_exception!(frameshare._errors, NotFoundError);
    import_exception!(frameshare._errors, PermissionDeniedError);
    import_exception!(frameshare._errors, ClosedError);
    import_exception!(frameshare._errors, TimeoutError);
    import_exception!(frameshare._errors, InterruptedError);
    import_exception!(frameshare._errors, HeldError);
    import_exception!(frameshare._errors, ReleasedError);
    import_exception!(frameshare._errors, UnsupportedError);
}
pub use classes::*;

/// Conversion to an exception of the package.
pub trait ToException {
    /// Returns the exception.
    fn to_exception(&self) -> PyErr;
}

impl<T: ToException> ToException for &T {
    fn to_exception(&self) -> PyErr {
        T::to_exception(self)
    }
}

impl ToException for OpenError {
    fn to_exception(&self) -> PyErr {
        match self {
            Self::Endpoint(error) => error.to_exception(),
            Self::Connect(error) => error.to_exception(),
            Self::Io(_) | _ => Error::new_err(self.to_string()),
        }
    }
}

impl ToException for EndpointError {
    fn to_exception(&self) -> PyErr {
        PyValueError::new_err(self.to_string())
    }
}

impl ToException for ConnectError {
    fn to_exception(&self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::NotThere { .. } | Self::NotAnswering { .. } => NotFoundError::new_err(text),
            Self::WrongUser { .. }
            | Self::PermissionDenied { .. }
            | Self::Refused { reason: Reason::PermissionDenied, .. } => PermissionDeniedError::new_err(text),
            Self::GpuNotVisible { .. } => UnsupportedError::new_err(format!(
                "{text}: add it to CUDA_VISIBLE_DEVICES, or take copies in host memory with device=\"cpu\""
            )),
            Self::GpuOutOfReach { exporter, .. } => UnsupportedError::new_err(format!(
                "{text}: open the stream with device=\"{}\", or take copies in host memory with device=\"cpu\"",
                exporter.id()
            )),
            Self::Interrupted => InterruptedError::new_err(text),
            Self::Config(_) => PyValueError::new_err(text),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                PermissionDeniedError::new_err(text)
            }
            _ => Error::new_err(text),
        }
    }
}

impl ToException for ReadError {
    fn to_exception(&self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Interrupted => InterruptedError::new_err(text),
            Self::Held { .. } => HeldError::new_err(text),
            Self::Stopped(_) | Self::Gone { .. } | Self::Stalled { .. } | Self::CutOff { .. } => {
                ClosedError::new_err(text)
            }
            Self::NotBack(ConnectError::NotThere { .. } | ConnectError::NotAnswering { .. }) => {
                ClosedError::new_err(text)
            }
            Self::NotBack(ConnectError::PermissionDenied { .. } | ConnectError::WrongUser { .. }) => {
                PermissionDeniedError::new_err(text)
            }
            Self::Gpu(error) | Self::NotBack(error @ ConnectError::Config(_)) => error.to_exception(),
            _ => Error::new_err(text),
        }
    }
}

impl ToException for VideoError {
    fn to_exception(&self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::NoSuchPlane { .. } | Self::Target { .. } | Self::TooLarge { .. } => {
                PyValueError::new_err(text)
            }
            Self::PlaneCount { .. } | Self::OutOfBounds { .. } | Self::OverlappingRows { .. } => {
                Error::new_err(text)
            }
            _ => UnsupportedError::new_err(text),
        }
    }
}

impl ToException for cuda::Error {
    fn to_exception(&self) -> PyErr {
        Error::new_err(self.to_string())
    }
}

impl ToException for FenceError {
    fn to_exception(&self) -> PyErr {
        Error::new_err(self.to_string())
    }
}

impl ToException for io::Error {
    fn to_exception(&self) -> PyErr {
        Error::new_err(self.to_string())
    }
}

/// Turns the errors of a result into exceptions.
pub trait OrRaise<T> {
    /// Returns the value, or the error as an exception.
    ///
    /// # Errors
    /// The exception.
    fn or_raise(self) -> pyo3::PyResult<T>;
}

impl<T, E: ToException> OrRaise<T> for Result<T, E> {
    fn or_raise(self) -> pyo3::PyResult<T> {
        self.map_err(|error| error.to_exception())
    }
}
