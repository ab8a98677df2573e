// SPDX-License-Identifier: MIT OR Apache-2.0

//! Announcements of CUDA stream captures, which keep the package from invalidating them.

use frameshare::cuda::capture::{self, Announced};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Announces captures of CUDA streams into graphs, by any thread of this process, for the time of a
/// `with` block. Nothing is recorded behind a whole context meanwhile, which would invalidate them:
/// frames whose streams are not known are released after the block.
///
/// Needed for streams that do not synchronize with the legacy default stream, such as PyTorch's:
/// the driver does not report their captures.
#[pyfunction]
pub fn announce_capture() -> CaptureAnnouncement {
    CaptureAnnouncement::default()
}

/// A context manager: captures are announced in its block. Blocks may be nested, and left by
/// another thread.
#[pyclass(frozen, module = "frameshare")]
#[derive(Debug, Default)]
pub struct CaptureAnnouncement(Mutex<Vec<Announced>>);

impl CaptureAnnouncement {
    fn lock(&self) -> MutexGuard<'_, Vec<Announced>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl CaptureAnnouncement {
    /// Waits for a record that is being made.
    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        let announced = slf.py().detach(capture::announce);
        slf.get().lock().push(announced);
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        let announced = self.lock().pop();
        py.detach(|| drop(announced));
    }
}
