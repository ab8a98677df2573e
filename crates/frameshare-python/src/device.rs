// SPDX-License-Identifier: MIT OR Apache-2.0

//! The GPU of a stream: chosen by the caller, or the exporter's.
//!
//! The driver is loaded for a stream on a GPU only, and the primary context is made then: that of
//! PyTorch, CuPy and the runtime API.

use crate::error::{Error, OrRaise, UnsupportedError};
use frameshare::{
    Endpoint,
    cuda::{self, Context, Device, Uuid},
    observer::Observer,
};
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyBool};
use std::{sync::Arc, time::Duration};

/// Maximum time for an exporter to describe its stream.
const DESCRIPTION: Duration = Duration::from_millis(500);

/// The place that a caller wants frames in.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// The exporter's: its GPU, if this process sees it, or host memory.
    Exporters,
    /// Host memory.
    Host,
    /// A GPU.
    Gpu(Device),
}

impl Wanted {
    /// The place of the argument `device`: `None`, "cpu", a number, "cuda:" with a number, a UUID,
    /// a device of PyTorch.
    ///
    /// # Errors
    /// `TypeError` for other objects; `UnsupportedError` for a GPU that is not there.
    pub fn of(device: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let Some(device) = device.filter(|device| !device.is_none()) else { return Ok(Self::Exporters) };
        let number = device.extract::<u32>().ok().filter(|_| !device.is_instance_of::<PyBool>());
        let text = match (number, device.extract::<String>()) {
            (Some(number), _) => number.to_string(),
            (_, Ok(text)) => text,
            _ if device.get_type().module()? == "torch" => device.str()?.to_string(),
            _ => {
                return Err(PyTypeError::new_err(format!(
                    "device is {device}: pass None, \"cpu\", the number of a GPU or its UUID"
                )));
            }
        };
        let text = match text.as_str() {
            "cpu" => return Ok(Self::Host),
            "cuda" => "0",
            text => text.strip_prefix("cuda:").unwrap_or(text),
        };
        let found = Device::find(text).map_err(|error| match error {
            cuda::Error::NoDriver { .. } | cuda::Error::NoDevice { .. } => UnsupportedError::new_err(
                format!("device {text:?}: {error}; use device=\"cpu\" for frames in host memory"),
            ),
            error => Error::new_err(error.to_string()),
        });
        found.map(Self::Gpu)
    }
}

/// Returns the GPU of a stream's frames; `None` if there is no exporter yet, or if they are in host
/// memory.
pub fn of_exporter(endpoint: &Endpoint, patience: Option<Duration>) -> Option<Uuid> {
    let limit = patience.map_or(DESCRIPTION, |patience| patience.min(DESCRIPTION));
    Observer::connect(endpoint, limit).ok()?.latest().gpu.map(Uuid)
}

/// Returns the primary context of the exporter's GPU; `None`, with a message in the log, if this
/// process does not see that GPU: frames then come in host memory, copied by the exporter.
///
/// # Errors
/// The error of the driver that has the GPU.
pub fn visible(gpu: Uuid) -> PyResult<Option<Arc<Context>>> {
    match Device::with_uuid(gpu) {
        Ok(Some(device)) => Context::primary(&device).map(Some).or_raise(),
        Ok(None) => {
            log::warn!(
                "frames come in host memory: they are on GPU or MIG instance {gpu}, which this process cannot see"
            );
            Ok(None)
        }
        Err(error @ cuda::Error::NoDriver { .. }) => {
            log::warn!("frames come in host memory: they are on a GPU, and there is {error}");
            Ok(None)
        }
        Err(error) => Err(Error::new_err(error.to_string())),
    }
}
