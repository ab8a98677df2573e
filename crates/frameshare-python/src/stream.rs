// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams: opening, and taking frames.
//!
//! Waits release the GIL and last for [`SLICE`] at most, after which Python handles its signals. The
//! reader is locked for a slice; a thread that closes the stream ends the slice by the interrupt.

use crate::{
    error::{ClosedError, InterruptedError, OrRaise, TimeoutError, ToException},
    frame::Frame,
};
use frameshare::{
    Endpoint, Interrupt, Policy,
    cuda::Context,
    reader::{Config, Item, ReadError, Reader},
};
use pyo3::{exceptions::PyValueError, prelude::*};
use std::{
    os::fd::{AsFd, AsRawFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Maximum time until a thread that waits handles signals, of which Ctrl-C is one.
const SLICE: Duration = Duration::from_millis(50);

/// A stream that this process reads. Iteration yields frames, and ends with the stream.
#[pyclass(frozen, module = "frameshare", weakref)]
#[derive(Debug)]
pub struct Stream {
    name: String,
    /// `None` after `close`.
    reader: Mutex<Option<Reader>>,
    gpu: Option<Arc<Context>>,
    /// Set by `interrupt`, and while `close` waits for the lock.
    interrupt: Interrupt,
    is_closing: AtomicBool,
    has_ended: AtomicBool,
}

/// A limit of time.
#[derive(Clone, Copy, Debug)]
struct Deadline(Option<Instant>);

impl Deadline {
    /// The time after a number of seconds; `None` is without limit.
    ///
    /// # Errors
    /// `ValueError` for numbers that are none, and negative ones.
    fn after(seconds: Option<f64>) -> PyResult<Self> {
        Ok(Self(duration(seconds)?.and_then(|time| Instant::now().checked_add(time))))
    }

    fn slice(self) -> Duration {
        self.0.map_or(SLICE, |end| end.saturating_duration_since(Instant::now()).min(SLICE))
    }

    fn is_over(self) -> bool {
        self.0.is_some_and(|end| end <= Instant::now())
    }
}

/// Returns a number of seconds as a duration.
///
/// # Errors
/// `ValueError` for numbers that are none, and negative ones.
fn duration(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    // A wait of a century is one without limit.
    const LONGEST: f64 = 100.0 * 365.0 * 86_400.0;
    let Some(seconds) = seconds else { return Ok(None) };
    if seconds.is_nan() || seconds < 0.0 {
        return Err(PyValueError::new_err(format!(
            "timeout is {seconds}, but must be a number of seconds, or None for no limit"
        )));
    }
    Ok((seconds < LONGEST).then(|| Duration::from_secs_f64(seconds)))
}

/// Opens a stream by its name or path, and waits up to `timeout` seconds for its exporter.
///
/// `policy` is "latest", which takes the newest frame and never delays the exporter, or "lossless".
/// `max_held` is the number of frames that this process may hold at once, up to 64. `device` is
/// "cpu" for frames in host memory. With `reconnect` the stream goes on with the next exporter of
/// the name when this one ends, however long that takes to come.
#[pyfunction]
#[pyo3(signature = (name, *, policy = "latest", max_held = 4, device = None, reconnect = true, timeout = Some(5.0)))]
pub fn open(
    py: Python<'_>,
    name: &str,
    policy: &str,
    max_held: u32,
    device: Option<&Bound<'_, PyAny>>,
    reconnect: bool,
    timeout: Option<f64>,
) -> PyResult<Stream> {
    let policy = match policy {
        "latest" => Policy::Latest,
        "lossless" => Policy::Lossless,
        other => {
            return Err(PyValueError::new_err(format!(
                "invalid policy {other:?}: expected \"latest\" or \"lossless\""
            )));
        }
    };
    let _ = device;
    let patience = duration(timeout)?;
    let config =
        Config::default().policy(policy).max_held(max_held).reconnect(reconnect).connection_timeout(patience);
    let endpoint = Endpoint::find(name).or_raise()?;
    let interrupt = Interrupt::new().or_raise()?;
    let gpu = config.gpu.clone();
    let mut reader = Reader::start(&endpoint, config).or_raise()?;
    // The first item is the end of the search.
    while py.detach(|| reader.next(Some(SLICE), &interrupt)).map_err(of_search)?.is_none() {
        py.check_signals()?;
    }
    if reconnect {
        reader.set_connection_timeout(None);
    }
    Ok(Stream {
        name: name.to_owned(),
        reader: Mutex::new(Some(reader)),
        gpu,
        interrupt,
        is_closing: AtomicBool::new(false),
        has_ended: AtomicBool::new(false),
    })
}

/// The exception of a search for the first exporter.
fn of_search(error: ReadError) -> PyErr {
    match error {
        ReadError::NotBack(error) => error.to_exception(),
        error => error.to_exception(),
    }
}

/// The result of a slice of a wait.
enum Slice {
    Frame(Box<frameshare::reader::Frame>),
    End,
    Nothing,
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, Option<Reader>> {
        self.reader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> PyErr {
        ClosedError::new_err(format!("stream {} was closed by this process", self.name))
    }

    /// Waits for a slice. Called without the GIL.
    fn slice(&self, time: Duration) -> Result<Slice, Option<ReadError>> {
        let deadline = Instant::now() + time;
        let mut reader = self.lock();
        let reader = reader.as_mut().ok_or(None)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let item = match reader.next(Some(left), &self.interrupt) {
                Err(ReadError::Interrupted) if self.is_closing.load(Ordering::SeqCst) => return Err(None),
                item => item.map_err(Some)?,
            };
            match item {
                None => return Ok(Slice::Nothing),
                Some(Item::Frame(frame)) => {
                    self.has_ended.store(false, Ordering::SeqCst);
                    return Ok(Slice::Frame(Box::new(frame)));
                }
                Some(Item::EndOfStream) => {
                    self.has_ended.store(true, Ordering::SeqCst);
                    return Ok(Slice::End);
                }
                Some(Item::Format(_) | Item::Reconnected) => self.has_ended.store(false, Ordering::SeqCst),
                Some(Item::Event(_)) => {}
            }
        }
    }

    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Frame>> {
        let deadline = Deadline::after(timeout)?;
        loop {
            let time = deadline.slice();
            match py.detach(|| self.slice(time)) {
                Ok(Slice::Frame(frame)) => return Ok(Some(Frame::new(*frame, self.gpu.clone()))),
                Ok(Slice::End) => return Ok(None),
                Ok(Slice::Nothing) if deadline.is_over() => {
                    return Err(TimeoutError::new_err(format!(
                        "no frame of {} within {} s",
                        self.name,
                        timeout.unwrap_or_default()
                    )));
                }
                Ok(Slice::Nothing) => py.check_signals()?,
                Err(None) => return Err(self.closed()),
                Err(Some(ReadError::Interrupted)) => {
                    return Err(InterruptedError::new_err(format!(
                        "the wait for a frame of {} was ended by interrupt()",
                        self.name
                    )));
                }
                Err(Some(error)) => return Err(error.to_exception()),
            }
        }
    }
}

#[pymethods]
impl Stream {
    /// The name or path that the stream was opened by.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Waits for the next frame; `None` at the end of the stream.
    ///
    /// Raises `TimeoutError` if none comes within `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Frame>> {
        self.wait(py, timeout)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        self.wait(py, None)
    }

    /// Whether the stream has ended and not continued since.
    #[getter]
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Ends all waits for frames, of all threads, with `InterruptedError`, until `interrupt(False)`.
    #[pyo3(signature = (on = true))]
    fn interrupt(&self, on: bool) {
        if on {
            self.interrupt.set();
        } else if !self.is_closing.load(Ordering::SeqCst) {
            self.interrupt.clear();
        }
    }

    /// Returns the descriptor that becomes readable when a frame may have arrived, for event loops:
    /// then call `next(0)` until it raises `TimeoutError`. It stays the same until `close`.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        py.detach(|| self.lock().as_ref().map(|reader| reader.as_fd().as_raw_fd()))
            .ok_or_else(|| self.closed())
    }

    /// Leaves the stream. Waits of other threads raise `ClosedError`; frames stay valid.
    fn close(&self, py: Python<'_>) {
        py.detach(|| {
            self.is_closing.store(true, Ordering::SeqCst);
            self.interrupt.set();
            let reader = self.lock().take();
            drop(reader);
        });
    }

    /// Whether `close` was called.
    #[getter]
    #[pyo3(name = "closed")]
    fn is_closed(&self) -> bool {
        self.is_closing.load(Ordering::SeqCst)
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let state = if self.is_closed() { " (closed)" } else { "" };
        format!("<frameshare.Stream {:?}{state}>", self.name)
    }
}
