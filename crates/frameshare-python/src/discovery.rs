// SPDX-License-Identifier: MIT OR Apache-2.0

//! Discovery: the streams of this machine, and their changes.

use crate::{
    error::{ClosedError, OrRaise},
    fork::{OfProcess, Process},
    wait::Deadline,
};
use frameshare::{Interrupt, StreamChange, StreamMonitor};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A stream that is shared at the moment.
#[pyclass(frozen, eq, get_all, module = "frameshare")]
#[derive(Clone, Debug, PartialEq)]
pub struct StreamInfo {
    /// Its name.
    name: String,
    /// The path of its socket.
    path: String,
    /// The exporter's process; `None` if it is in another PID namespace, or too busy to accept now.
    exporter_pid: Option<u32>,
    /// The name of the exporter's program.
    exporter_program: Option<String>,
}

impl From<frameshare::StreamInfo> for StreamInfo {
    fn from(stream: frameshare::StreamInfo) -> Self {
        Self {
            name: stream.name.to_string(),
            path: stream.endpoint.path().display().to_string(),
            exporter_pid: stream.exporter_pid,
            exporter_program: stream.exporter_program,
        }
    }
}

#[pymethods]
impl StreamInfo {
    fn __repr__(&self) -> String {
        let pid = self.exporter_pid.map_or_else(|| "?".into(), |pid| pid.to_string());
        format!("<frameshare.StreamInfo {:?} of process {pid}>", self.name)
    }
}

/// Returns the streams that are shared at the moment: those of this user that have a name, then
/// those in each folder of `FRAMESHARE_PATH`.
#[pyfunction]
pub fn streams(py: Python<'_>) -> PyResult<Vec<StreamInfo>> {
    Ok(py.detach(frameshare::streams).or_raise()?.into_iter().map(StreamInfo::from).collect())
}

/// Returns an iterator over the changes of the list of this user's named streams: pairs of
/// "appeared" or "vanished" and a `StreamInfo`. The streams that exist already come first.
#[pyfunction]
pub fn watch_streams() -> PyResult<StreamWatch> {
    let monitor = StreamMonitor::new().or_raise()?;
    Ok(StreamWatch {
        process: Process::current(),
        monitor: Mutex::new(Some(OfProcess::new(monitor))),
        interrupt: Interrupt::new().or_raise()?,
    })
}

/// Changes of the list of streams, as an iterator.
#[pyclass(frozen, module = "frameshare")]
#[derive(Debug)]
pub struct StreamWatch {
    process: Process,
    /// `None` after `close`.
    monitor: Mutex<Option<OfProcess<StreamMonitor>>>,
    /// Set by `close`.
    interrupt: Interrupt,
}

const NAME: &str = "a StreamWatch";

impl StreamWatch {
    fn lock(&self) -> MutexGuard<'_, Option<OfProcess<StreamMonitor>>> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slice; `Err(None)` if it is closed. Called without the GIL.
    fn slice(&self, deadline: Deadline) -> Result<Option<StreamChange>, Option<std::io::Error>> {
        let mut monitor = self.lock();
        let monitor = monitor.as_mut().and_then(OfProcess::get_mut).ok_or(None)?;
        let change = monitor.next(Some(deadline.slice()), &self.interrupt).map_err(Some)?;
        if change.is_none() && self.interrupt.is_set() { Err(None) } else { Ok(change) }
    }
}

#[pymethods]
impl StreamWatch {
    /// Waits for the next change; `None` if there is none within `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<(&'static str, StreamInfo)>> {
        self.process.check(NAME)?;
        let deadline = Deadline::after(timeout)?;
        loop {
            match py.detach(|| self.slice(deadline)) {
                Ok(Some(StreamChange::Appeared(stream))) => return Ok(Some(("appeared", stream.into()))),
                Ok(Some(StreamChange::Vanished(stream))) => return Ok(Some(("vanished", stream.into()))),
                Ok(Some(_)) => {}
                Ok(None) if deadline.is_over() => return Ok(None),
                Ok(None) => py.check_signals()?,
                Err(None) => return Err(ClosedError::new_err("the watch of streams was closed")),
                Err(Some(error)) => return Err(error).or_raise(),
            }
        }
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<(&'static str, StreamInfo)>> {
        match self.next(py, None) {
            Err(error) if error.is_instance_of::<ClosedError>(py) => Ok(None),
            change => change,
        }
    }

    /// Ends the watch, and the iteration of other threads.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.process.check(NAME)?;
        py.detach(|| {
            self.interrupt.set();
            drop(self.lock().take());
        });
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}
