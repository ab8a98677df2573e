// SPDX-License-Identifier: MIT OR Apache-2.0

//! Errors of exporters as exceptions of the package.

use crate::error::{ClosedError, Error, PermissionDeniedError, ToException, UnsupportedError};
use frameshare::{
    event::{EventError, MetaError},
    exporter::{AcquireError, BindError, Interrupted, PublishError, VideoExporterError},
};
use pyo3::{PyErr, exceptions::PyValueError};
use std::io;

impl ToException for BindError {
    fn to_exception(&self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Config(_) => PyValueError::new_err(text),
            Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
                PermissionDeniedError::new_err(text)
            }
            _ => Error::new_err(text),
        }
    }
}

impl ToException for AcquireError {
    fn to_exception(&self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Closed => ClosedError::new_err(text),
            Self::Size(_) => PyValueError::new_err(text),
            _ => Error::new_err(text),
        }
    }
}

impl ToException for PublishError {
    fn to_exception(&self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Closed => ClosedError::new_err(text),
            Self::Invalid(_) => PyValueError::new_err(text),
            _ => Error::new_err(text),
        }
    }
}

impl ToException for Interrupted {
    fn to_exception(&self) -> PyErr {
        Error::new_err(self.to_string())
    }
}

impl ToException for VideoExporterError {
    fn to_exception(&self) -> PyErr {
        match self {
            Self::Endpoint(error) => error.to_exception(),
            Self::Format(error) => error.to_exception(),
            Self::Bind(error) => error.to_exception(),
            Self::Acquire(error) => error.to_exception(),
            Self::Publish(error) => error.to_exception(),
            other => Error::new_err(other.to_string()),
        }
    }
}

impl ToException for MetaError {
    fn to_exception(&self) -> PyErr {
        let text = self.to_string();
        match self {
            Self::Invalid(_) => PyValueError::new_err(text),
            Self::Version => UnsupportedError::new_err(text),
            _ => Error::new_err(text),
        }
    }
}

impl ToException for EventError {
    fn to_exception(&self) -> PyErr {
        PyValueError::new_err(self.to_string())
    }
}
