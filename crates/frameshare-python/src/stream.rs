// SPDX-License-Identifier: MIT OR Apache-2.0

//! Streams: opening, and taking frames.
//!
//! Waits release the GIL and last for [`SLICE`] at most, after which Python handles its signals.
//! The reader is locked for a slice; a thread that closes the stream ends it by the interrupt.
//!
//! A process that holds all the frames that it may hold gets no further one. If no other thread can
//! release them, waiting on would never end: it raises `HeldError`. Otherwise it warns and waits. A
//! frame that is released is not held, even if the GPU has still to finish it: it is waited for.

use crate::{
    device::{self, Wanted},
    error::{ClosedError, HeldError, InterruptedError, NotFoundError, OrRaise, TimeoutError, ToException},
    events::{Notice, Tags},
    fork::{OfProcess, Process},
    frame::Frame,
    gpu::Gpu,
    layouts::Layouts,
    lease::Lease,
    logging, name,
    stats::Stats,
    wait::{Deadline, SLICE, Turn, duration},
};
use frameshare::{
    Endpoint, Interrupt, Policy,
    cuda::Context,
    reader::{self, Config, ConnectError, Item, ReadError, Reader, ReaderHandle},
};
use pyo3::{
    IntoPyObjectExt,
    exceptions::{PyRuntimeWarning, PyValueError},
    prelude::*,
    types::PyDict,
};
use rustix::event::epoll;
use std::{
    ffi::CString,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// Time after which a wait without leases raises or warns.
const PATIENCE: Duration = Duration::from_secs(1);

/// A stream that this process reads. Iteration yields frames, and ends with the stream.
#[pyclass(frozen, module = "frameshare", weakref)]
#[derive(Debug)]
pub struct Stream {
    name: String,
    /// The arguments of `open`, for pickling.
    options: Py<PyDict>,
    process: Process,
    /// `None` after `close`.
    reading: Mutex<Option<OfProcess<Reading>>>,
    /// For threads beside the one that waits for frames.
    handle: ReaderHandle,
    /// One thread at a time waits for frames.
    turn: Turn,
    /// Readable when the reader's descriptor is, or the interrupt is set.
    readiness: OwnedFd,
    gpu: Option<Arc<Gpu>>,
    /// Set by `interrupt`, and while `close` waits for the lock.
    interrupt: Interrupt,
    is_closing: AtomicBool,
    has_ended: AtomicBool,
    /// Sequence numbers and leases of the frames that went out, of which some are still held.
    out: Mutex<Vec<(u64, Weak<Lease>)>>,
}

/// A reader, and what applies to its next frame.
#[derive(Debug)]
struct Reading {
    reader: Reader,
    tags: Arc<Tags>,
    layouts: Option<Arc<Layouts>>,
}

/// Opens a stream by its name or path, and waits up to `connection_timeout` seconds for its
/// exporter.
///
/// `policy` is "latest", which takes the newest frame and never delays the exporter, or "lossless".
/// `max_held` is the number of frames that this process may hold at once, up to 64; the exporter
/// may grant fewer (`Stream.stats.max_held`), which is logged. `spin` is the share of a core, in
/// percent, that waits for frames may spend awake: 0 sleeps, and 100 always spins. `device` is
/// "cpu" for frames in host memory, or the number or the UUID of a GPU; by default frames come
/// where the exporter has them. With `reconnect` the stream goes on with the next exporter of the
/// name when this one ends, however long that takes to come.
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
#[pyfunction]
#[pyo3(
    signature = (
        name, *, policy = "latest", max_held = 4, spin = 0, device = None, reconnect = true,
        connection_timeout = Some(5.0)
    ),
    text_signature = "(name, *, policy='latest', max_held=4, spin=0, device=None, reconnect=True, connection_timeout=5.0)"
)]
pub fn open(
    py: Python<'_>,
    #[pyo3(from_py_with = name::of)] name: String,
    policy: &str,
    max_held: i64,
    spin: i64,
    device: Option<&Bound<'_, PyAny>>,
    reconnect: bool,
    connection_timeout: Option<f64>,
) -> PyResult<Stream> {
    let options = Options { policy, max_held, spin, device, reconnect, connection_timeout };
    let wanted = Wanted::of(device)?;
    let endpoint = Endpoint::find(&name).or_raise()?;
    let mut config = options.config(py, &endpoint)?;
    let interrupt = Interrupt::new().or_raise()?;
    let mut reader = connect(py, &endpoint, &config, connection_timeout, &interrupt)?;
    // The exporter came after the question for its GPU.
    if let (Wanted::Exporters, None, Some(gpu)) = (wanted, &config.gpu, reader.exporter_gpu())
        && let Some(context) = py.detach(|| device::visible(gpu))?
    {
        drop(reader);
        config.gpu = Some(context);
        reader = connect(py, &endpoint, &config, connection_timeout, &interrupt)?;
    }
    let gpu = config.gpu.map(Gpu::new);
    if reconnect {
        reader.set_connection_timeout(None);
    }
    let readiness = readiness(&reader, &interrupt).or_raise()?;
    let handle = reader.handle();
    Ok(Stream {
        name,
        options: options.to_dict(py)?.unbind(),
        process: Process::current(),
        reading: Mutex::new(Some(OfProcess::new(Reading { reader, tags: Arc::default(), layouts: None }))),
        readiness,
        handle,
        turn: Turn::default(),
        gpu,
        interrupt,
        is_closing: AtomicBool::new(false),
        has_ended: AtomicBool::new(false),
        out: Mutex::default(),
    })
}

/// The keywords of `open`.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a, 'py> {
    /// "latest" or "lossless".
    pub policy: &'a str,
    /// Maximum number of frames to hold.
    pub max_held: i64,
    /// Share of a core to spend spinning, in percent.
    pub spin: i64,
    /// The place of the frames.
    pub device: Option<&'a Bound<'py, PyAny>>,
    /// Whether to go on with the next exporter.
    pub reconnect: bool,
    /// Seconds to wait for the exporter.
    pub connection_timeout: Option<f64>,
}

impl<'py> Options<'_, 'py> {
    /// Returns the configuration of the reader of a stream.
    ///
    /// # Errors
    /// `ValueError` for invalid values; those of the GPU.
    pub fn config(&self, py: Python<'py>, endpoint: &Endpoint) -> PyResult<Config> {
        let policy = match self.policy {
            "latest" => Policy::Latest,
            "lossless" => Policy::Lossless,
            other => {
                return Err(PyValueError::new_err(format!(
                    "invalid policy {other:?}: expected \"latest\" or \"lossless\""
                )));
            }
        };
        let patience = duration("connection_timeout", self.connection_timeout)?;
        let wanted = Wanted::of(self.device)?;
        let takes_host = matches!(wanted, Wanted::Exporters);
        let gpu = match wanted {
            Wanted::Host => None,
            Wanted::Gpu(device) => Some(py.detach(|| Context::primary(&device)).or_raise()?),
            Wanted::Exporters => {
                py.detach(|| device::of_exporter(endpoint, patience).map_or(Ok(None), device::visible))?
            }
        };
        let max_held = u32::try_from(self.max_held).map_err(|_| {
            PyValueError::new_err(format!("max_held is {}, but must be 0 to 64", self.max_held))
        })?;
        // The engine refuses values above 100, and names them.
        let spin = u32::try_from(self.spin).map_err(|_| {
            PyValueError::new_err(format!(
                "spin is {}, but is a share of a core in percent: set it to 0 (sleep) to 100 (always spin)",
                self.spin
            ))
        })?;
        let config = Config::default().policy(policy).max_held(max_held).spin(spin).gpu(gpu);
        Ok(config.host_fallback(takes_host).reconnect(self.reconnect).connection_timeout(patience))
    }

    fn to_dict(self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let Self { policy, max_held, spin, device, reconnect, connection_timeout } = self;
        let dict = PyDict::new(py);
        dict.set_item("policy", policy)?;
        dict.set_item("max_held", max_held)?;
        dict.set_item("spin", spin)?;
        dict.set_item("device", device)?;
        dict.set_item("reconnect", reconnect)?;
        dict.set_item("connection_timeout", connection_timeout)?;
        Ok(dict)
    }
}

/// Connects a reader, and waits for its exporter, up to `timeout` seconds.
fn connect(
    py: Python<'_>,
    endpoint: &Endpoint,
    config: &Config,
    timeout: Option<f64>,
    interrupt: &Interrupt,
) -> PyResult<Reader> {
    let mut reader = Reader::start(endpoint, config.clone()).or_raise()?;
    // The first item is the end of the search.
    loop {
        match py.detach(|| reader.next(Some(SLICE), interrupt)) {
            Ok(Some(_)) => return Ok(reader),
            Ok(None) => py.check_signals()?,
            Err(ReadError::NotBack(error)) => return Err(not_connected(&error, timeout)),
            Err(error) => return Err(error.to_exception()),
        }
    }
}

/// Returns the exception of a search, with the time limit as the caller gave it.
fn not_connected(error: &ConnectError, timeout: Option<f64>) -> PyErr {
    match (error, timeout) {
        (ConnectError::NotThere { endpoint, .. }, Some(seconds)) => {
            NotFoundError::new_err(format!("no exporter at {endpoint} after {seconds} s"))
        }
        (ConnectError::NotAnswering { endpoint, .. }, Some(seconds)) => NotFoundError::new_err(format!(
            "the exporter at {endpoint} has not answered within {seconds} s: its process is stopped, or hangs"
        )),
        _ => error.to_exception(),
    }
}

/// Returns a descriptor that is readable when one of the two is.
fn readiness(reader: &Reader, interrupt: &Interrupt) -> io::Result<OwnedFd> {
    let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in [reader.as_fd(), interrupt.as_fd()] {
        epoll::add(&all, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    }
    Ok(all)
}

/// The result of a slice of a wait.
enum Slice {
    Frame(Frame),
    /// Also the end.
    Notice(Notice),
    /// No frame came; if `full`, none can come while this process holds all frames that it may.
    Nothing {
        full: bool,
    },
}

impl Stream {
    fn lock(&self) -> MutexGuard<'_, Option<OfProcess<Reading>>> {
        self.reading.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check_process(&self) -> PyResult<()> {
        self.process.check(format_args!("stream {}", self.name))
    }

    fn closed_error(&self) -> PyErr {
        ClosedError::new_err(format!("stream {} was closed by this process", self.name))
    }

    /// Waits for a slice of time. Other items than frames, and the end, are left out without
    /// `notices`. Called without the GIL.
    fn slice(&self, time: Duration, notices: bool) -> Result<Slice, Option<ReadError>> {
        let deadline = Instant::now() + time;
        // A call without a wait prepares the descriptor for event loops, which takes the turn.
        let patience = if time.is_zero() { SLICE } else { time };
        let Some(_turn) = self.turn.take(patience) else { return Ok(Slice::Nothing { full: false }) };
        let mut reading = self.lock();
        let Reading { reader, tags, layouts } = reading.as_mut().and_then(OfProcess::get_mut).ok_or(None)?;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // A wait, even of no time, does not prepare the descriptor for event loops.
            let item = match left.is_zero() {
                true if self.interrupt.is_set() => Err(ReadError::Interrupted),
                true => reader.try_next(),
                false => reader.next(Some(left), &self.interrupt),
            };
            let item = match item {
                Err(ReadError::Interrupted) if self.is_closing.load(Ordering::SeqCst) => return Err(None),
                item => item.map_err(Some)?,
            };
            let Some(item) = item else { return Ok(Slice::Nothing { full: reader.holds_all() }) };
            Tags::apply(tags, &item);
            let notice = match item {
                Item::Frame(frame) => {
                    self.has_ended.store(false, Ordering::SeqCst);
                    let layouts = Layouts::of(&frame, layouts);
                    return Ok(Slice::Frame(self.frame(frame, Arc::clone(tags), layouts)));
                }
                Item::EndOfStream => {
                    self.has_ended.store(true, Ordering::SeqCst);
                    return Ok(Slice::Notice(Notice::End));
                }
                Item::Format(format) => Notice::Format(format),
                Item::Reconnected => Notice::Reconnected,
                Item::Event(event) => Notice::Event(event),
            };
            if !matches!(notice, Notice::Event(_)) {
                self.has_ended.store(false, Ordering::SeqCst);
            }
            if notices {
                return Ok(Slice::Notice(notice));
            }
        }
    }

    fn failed(&self, error: Option<ReadError>) -> PyErr {
        match error {
            None => self.closed_error(),
            Some(ReadError::Interrupted) => InterruptedError::new_err(format!(
                "the wait for a frame of {} was ended by interrupt()",
                self.name
            )),
            Some(error) => error.to_exception(),
        }
    }

    fn frame(&self, frame: reader::Frame, tags: Arc<Tags>, layouts: Arc<Layouts>) -> Frame {
        let frame = Frame::new(frame, self.gpu.clone(), tags, layouts);
        let mut out = self.out();
        out.retain(|(_, lease)| lease.strong_count() > 0);
        out.push((frame.number(), frame.watch()));
        frame
    }

    fn wait(&self, py: Python<'_>, timeout: Option<f64>, notices: bool) -> PyResult<Slice> {
        self.check_process()?;
        let deadline = Deadline::after(timeout)?;
        let (mut full_since, mut has_warned) = (None, false);
        loop {
            let time = deadline.slice();
            let full = match py.detach(|| self.slice(time, notices)).map_err(|error| self.failed(error))? {
                Slice::Nothing { full } => full,
                item => return Ok(item),
            };
            if deadline.is_over() {
                let why = if full { format!(": {}", self.held()) } else { String::new() };
                return Err(TimeoutError::new_err(format!(
                    "no frame of {} within {} s{why}",
                    self.name,
                    deadline.seconds()
                )));
            }
            py.check_signals()?;
            full_since = full.then(|| full_since.unwrap_or_else(Instant::now));
            if full_since.is_some_and(|since| since.elapsed() >= PATIENCE) && !has_warned {
                self.complain(py)?;
                has_warned = true;
            }
        }
    }

    fn wait_for_frame(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Frame>> {
        match self.wait(py, timeout, false)? {
            Slice::Frame(frame) => Ok(Some(frame)),
            Slice::Notice(_) | Slice::Nothing { .. } => Ok(None),
        }
    }

    fn out(&self) -> MutexGuard<'_, Vec<(u64, Weak<Lease>)>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sequence numbers of the frames that objects of this process hold, each with its number of
    /// arrays.
    fn in_use(&self) -> Vec<(u64, usize)> {
        let out = self.out().clone();
        out.iter().filter_map(|(number, lease)| Some((*number, lease.upgrade()?.views()))).collect()
    }

    /// Says which frames are held, and by what.
    fn held(&self) -> String {
        let held = self.in_use();
        let each: Vec<_> = held
            .iter()
            .map(|(number, views)| match views {
                0 => format!("{number}"),
                1 => format!("{number} (1 array)"),
                _ => format!("{number} ({views} arrays)"),
            })
            .collect();
        format!(
            "this process holds {} frames of {} and may hold no more: release() frames {}, or drop them and \
             the arrays and tensors of their memory; open(max_held=) allows more, up to the exporter's \
             create(max_held_limit=)",
            held.len(),
            self.name,
            each.join(", ")
        )
    }

    /// Raises `HeldError` if no other Python thread can release a frame, and warns otherwise.
    fn complain(&self, py: Python<'_>) -> PyResult<()> {
        let mut threads = 0;
        for thread in py.import("threading")?.call_method0("enumerate")?.try_iter()? {
            // That of the log releases no frame.
            threads += usize::from(thread?.getattr("name")?.extract::<String>()? != logging::THREAD);
        }
        if threads <= 1 {
            return Err(HeldError::new_err(self.held()));
        }
        let text = CString::new(format!("waiting for a frame while {}", self.held())).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyRuntimeWarning>(), &text, 1)
    }
}

#[pymethods]
impl Stream {
    /// The name or path that the stream was opened by.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The number of frames that this process may hold at once, as `open` got it. The exporter may
    /// have granted fewer: `stats.max_held`.
    #[getter]
    fn max_held<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.options.bind(py).as_any().get_item("max_held")
    }

    /// Waits for the next frame; `None` at the end of the stream.
    ///
    /// Raises `TimeoutError` if none comes within `timeout` seconds, and `HeldError` after a second
    /// in which this process, with one thread, held all frames that it may hold. Releases that the
    /// GPU has still to finish are waited for.
    #[pyo3(signature = (timeout = None))]
    fn next(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Frame>> {
        self.wait_for_frame(py, timeout)
    }

    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Frame>> {
        self.wait_for_frame(py, None)
    }

    /// Waits for the next item: a frame, or an event between frames.
    ///
    /// Raises `TimeoutError` if none comes within `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn next_item<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        match self.wait(py, timeout, true)? {
            Slice::Frame(frame) => frame.into_bound_py_any(py),
            Slice::Notice(notice) => notice.to_object(py),
            Slice::Nothing { .. } => Ok(py.None().into_bound(py)),
        }
    }

    /// Returns an iterator over frames and the events between them, in order. It goes on after the
    /// end of the stream, which is one of them.
    fn items<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let next = slf.getattr("next_item")?;
        // None is no item, so that the iterator does not end.
        slf.py().import("builtins")?.call_method1("iter", (next, slf.py().None()))
    }

    /// Waits for the next frame in an event loop; `None` at the end of the stream.
    ///
    /// Raises `TimeoutError` if none comes within `timeout` seconds. A cancellation loses no frame.
    #[pyo3(signature = (timeout = None))]
    fn anext<'py>(slf: &Bound<'py, Self>, timeout: Option<f64>) -> PyResult<Bound<'py, PyAny>> {
        slf.get().check_process()?;
        slf.py().import("frameshare._asyncio")?.call_method1("take", (slf, timeout))
    }

    fn __aiter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __anext__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("frameshare._asyncio")?.call_method1("iterate", (slf,))
    }

    /// Returns the next frame if it is there; otherwise whether the stream has ended.
    fn _poll<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.check_process()?;
        match py.detach(|| self.slice(Duration::ZERO, false)).map_err(|error| self.failed(error))? {
            Slice::Frame(frame) => frame.into_bound_py_any(py),
            Slice::Notice(_) => true.into_bound_py_any(py),
            Slice::Nothing { .. } => false.into_bound_py_any(py),
        }
    }

    /// Statistics as of the last item, with the present number of held frames.
    #[getter]
    fn stats(&self) -> PyResult<Stats> {
        self.check_process()?;
        if self.is_closed() { Err(self.closed_error()) } else { Ok(Stats::of(self.handle.stats())) }
    }

    /// Pickles, and copies, as a call of `open` with the same arguments.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let module = py.import("frameshare")?;
        let open = py.import("functools")?.getattr("partial")?;
        let open = open.call((module.getattr("open")?,), Some(self.options.bind(py)))?;
        (open, (&self.name,)).into_bound_py_any(py)
    }

    /// Whether the stream has ended and not continued since.
    #[getter]
    fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    /// Ends the waits for frames of all threads with `InterruptedError`, until `interrupt(False)`.
    #[pyo3(signature = (on = true))]
    fn interrupt(&self, on: bool) -> PyResult<()> {
        self.check_process()?;
        if on {
            self.interrupt.set();
        } else if !self.is_closing.load(Ordering::SeqCst) {
            self.interrupt.clear();
        }
        Ok(())
    }

    /// Returns the descriptor that becomes readable when a frame may have arrived, and when the
    /// stream is interrupted or closed, for event loops: then call `next(0)` until it raises
    /// `TimeoutError`.
    fn fileno(&self) -> PyResult<RawFd> {
        self.check_process()?;
        if self.is_closed() { Err(self.closed_error()) } else { Ok(self.readiness.as_raw_fd()) }
    }

    /// Leaves the stream. Waits of other threads raise `ClosedError`; frames stay valid.
    fn close(&self, py: Python<'_>) {
        if !self.process.is_current() {
            return;
        }
        py.detach(|| {
            self.is_closing.store(true, Ordering::SeqCst);
            self.interrupt.set();
            let reading = self.lock().take();
            drop(reading);
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
