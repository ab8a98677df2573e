// SPDX-License-Identifier: MIT OR Apache-2.0

//! Several streams in one thread. `frameshare._many` selects and orders their frames.

use crate::{
    error::{ClosedError, InterruptedError, OrRaise, ToException},
    events::Tags,
    fork::{OfProcess, Process},
    frame::Frame,
    gpu::Gpu,
    layouts::Layouts,
    stats::Stats,
    stream::Options,
    wait::Deadline,
};
use frameshare::{
    Endpoint, Interrupt,
    reader::{self, Item, Reader, ReaderHandle, ReaderKey},
};
use pyo3::{IntoPyObjectExt, prelude::*};
use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// Readers of several streams, which takes their items in turns.
#[pyclass(frozen, module = "frameshare._frameshare", name = "_ReaderSet")]
#[derive(Debug)]
pub struct ReaderSet {
    process: Process,
    /// `None` after `close`.
    cameras: Mutex<Option<OfProcess<Cameras>>>,
    /// By the numbers of the streams, for threads beside the one that waits; `None` for those that
    /// have ended.
    handles: Mutex<Vec<Option<ReaderHandle>>>,
    interrupt: Interrupt,
    is_closing: AtomicBool,
}

#[derive(Debug, Default)]
struct Cameras {
    set: reader::ReaderSet,
    cameras: Vec<Camera>,
}

#[derive(Debug)]
struct Camera {
    key: ReaderKey,
    gpu: Option<Arc<Gpu>>,
    tags: Arc<Tags>,
    layouts: Option<Arc<Layouts>>,
}

/// The next item of any camera, by its number.
enum Next {
    Frame(usize, Frame),
    Ended(usize),
    Failed(usize, Box<reader::ReadError>),
    Nothing,
}

const NAME: &str = "a set of streams";

impl Cameras {
    fn next(&mut self, deadline: Deadline, interrupt: &Interrupt) -> io::Result<Next> {
        loop {
            let Some((key, item)) = self.set.next(Some(deadline.slice()), interrupt)? else {
                return Ok(Next::Nothing);
            };
            let Some(index) = self.cameras.iter().position(|camera| camera.key == key) else { continue };
            let camera = &mut self.cameras[index];
            let item = match item {
                Ok(item) => item,
                Err(error) => {
                    // Its connection ends now, not with the set.
                    self.set.remove(key);
                    return Ok(Next::Failed(index, Box::new(error)));
                }
            };
            Tags::apply(&mut camera.tags, &item);
            match item {
                Item::Frame(frame) => {
                    let layouts = Layouts::of(&frame, &mut camera.layouts);
                    let (gpu, tags) = (camera.gpu.clone(), Arc::clone(&camera.tags));
                    return Ok(Next::Frame(index, Frame::new(frame, gpu, tags, layouts)));
                }
                Item::EndOfStream => return Ok(Next::Ended(index)),
                Item::Format(_) | Item::Event(_) | Item::Reconnected => {}
            }
        }
    }
}

impl ReaderSet {
    fn lock(&self) -> MutexGuard<'_, Option<OfProcess<Cameras>>> {
        self.cameras.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls a function with the cameras, without the GIL; `None` if the set is closed.
    fn with<T: Send>(&self, py: Python<'_>, act: impl FnOnce(&mut Cameras) -> T + Send) -> PyResult<T> {
        self.process.check(NAME)?;
        let done = py.detach(|| Some(act(self.lock().as_mut().and_then(OfProcess::get_mut)?)));
        done.ok_or_else(closed)
    }

    fn handles(&self) -> MutexGuard<'_, Vec<Option<ReaderHandle>>> {
        self.handles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets the handle of a stream that has ended.
    fn forget(&self, index: usize) {
        if let Some(handle) = self.handles().get_mut(index) {
            *handle = None;
        }
    }
}

fn closed() -> PyErr {
    ClosedError::new_err("the set of streams was closed by this process")
}

#[pymethods]
impl ReaderSet {
    #[new]
    fn new() -> PyResult<Self> {
        Ok(Self {
            process: Process::current(),
            cameras: Mutex::new(Some(OfProcess::new(Cameras::default()))),
            handles: Mutex::default(),
            interrupt: Interrupt::new().or_raise()?,
            is_closing: AtomicBool::new(false),
        })
    }

    /// Adds a stream without waiting for its exporter, and returns its number.
    #[pyo3(signature = (name, *, policy = "latest", max_held = 4, device = None, reconnect = true))]
    fn add(
        &self,
        py: Python<'_>,
        name: &str,
        policy: &str,
        max_held: i64,
        device: Option<&Bound<'_, PyAny>>,
        reconnect: bool,
    ) -> PyResult<usize> {
        let endpoint = Endpoint::find(name).or_raise()?;
        let options = Options { policy, max_held, spin: 0, device, reconnect, connection_timeout: None };
        let config = options.config(py, &endpoint)?;
        let gpu = config.gpu.clone().map(Gpu::new);
        let mut reader = Reader::start(&endpoint, config).or_raise()?;
        let handle = reader.handle();
        self.with(py, |cameras| {
            let key = cameras.set.add(reader);
            cameras.cameras.push(Camera { key, gpu, tags: Arc::default(), layouts: None });
            self.handles().push(Some(handle));
            cameras.cameras.len() - 1
        })
    }

    /// Waits for the next item of any stream: its number, and a frame, an exception with which it
    /// has failed, or None if it has ended. None alone if there is none within `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn next<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
    ) -> PyResult<Option<(usize, Bound<'py, PyAny>)>> {
        let deadline = Deadline::after(timeout)?;
        loop {
            let next = self.with(py, |cameras| cameras.next(deadline, &self.interrupt))?.or_raise()?;
            return match next {
                Next::Frame(index, frame) => Ok(Some((index, frame.into_bound_py_any(py)?))),
                Next::Ended(index) => Ok(Some((index, py.None().into_bound(py)))),
                Next::Failed(index, error) => {
                    self.forget(index);
                    Ok(Some((index, error.to_exception().into_value(py).into_bound_py_any(py)?)))
                }
                Next::Nothing if self.is_closing.load(Ordering::SeqCst) => Err(closed()),
                Next::Nothing if self.interrupt.is_set() => {
                    Err(InterruptedError::new_err("the wait for frames was ended by interrupt()"))
                }
                Next::Nothing if deadline.is_over() => Ok(None),
                Next::Nothing => {
                    py.check_signals()?;
                    continue;
                }
            };
        }
    }

    /// Returns the statistics of a stream; None after it has failed.
    fn stats(&self, index: usize) -> PyResult<Option<Stats>> {
        self.process.check(NAME)?;
        if self.is_closing.load(Ordering::SeqCst) {
            return Err(closed());
        }
        Ok(self.handles().get(index).and_then(|handle| Some(Stats::of(handle.as_ref()?.stats()))))
    }

    /// Ends a stream's connection.
    fn remove(&self, py: Python<'_>, index: usize) -> PyResult<()> {
        self.with(py, |cameras| {
            if let Some(camera) = cameras.cameras.get(index) {
                let key = camera.key;
                drop(cameras.set.remove(key));
            }
            self.forget(index);
        })
    }

    fn interrupt(&self, on: bool) -> PyResult<()> {
        self.process.check(NAME)?;
        if on {
            self.interrupt.set();
        } else if !self.is_closing.load(Ordering::SeqCst) {
            self.interrupt.clear();
        }
        Ok(())
    }

    fn close(&self, py: Python<'_>) {
        if self.process.is_current() {
            py.detach(|| {
                self.is_closing.store(true, Ordering::SeqCst);
                self.interrupt.set();
                drop(self.lock().take());
            });
        }
    }
}
