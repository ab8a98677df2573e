// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporters: creation of streams, and publication of arrays.

use super::{
    array::{self, Array, Place},
    metas,
    number::number,
    shared::{Engine, Shared, Times},
    slot::{self, Writing},
    target::{self, Video},
};
use crate::{
    cuda_stream::{Handle, NamedStream},
    device::Wanted,
    error::{Error, OrRaise},
    name,
    wait::Deadline,
};
use frameshare::{
    Endpoint, Format, MemoryKind, Wait,
    cuda::Device,
    exporter::{self, Config, History, NewFrame, Notice, Purpose, SlowReaders, VideoExporter},
    video::VideoFormat,
};
use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyFloat, PyInt, PyString, PyTuple},
};
use std::{sync::Arc, time::Duration};

/// An exporter of a stream: `frameshare.create`.
#[pyclass(frozen, module = "frameshare", weakref)]
#[derive(Debug)]
pub struct Exporter(Arc<Shared>);

/// Options of a stream that all kinds have.
struct Options<'a> {
    max_slots: u32,
    max_held_limit: u32,
    slow_readers: &'a str,
    reader_timeout: f64,
    history: u32,
}

impl Options<'_> {
    fn config(&self) -> PyResult<Config> {
        let slow_readers = match self.slow_readers {
            "wait" => SlowReaders::Wait,
            "queue" => SlowReaders::QueueThenWait,
            "disconnect" => SlowReaders::QueueThenDisconnect,
            other => {
                return Err(PyValueError::new_err(format!(
                    "invalid slow_readers {other:?}: expected \"wait\", \"queue\" or \"disconnect\""
                )));
            }
        };
        let reader_timeout = seconds("reader_timeout", self.reader_timeout)?;
        Ok(Config::default()
            .max_slots(self.max_slots)
            .max_held_limit(self.max_held_limit)
            .slow_readers(slow_readers)
            .reader_timeout(reader_timeout)
            .history(History::Frames(self.history)))
    }
}

fn history_of(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    number("history", value)
}

fn max_slots_of(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    number("max_slots", value)
}

fn max_held_limit_of(value: &Bound<'_, PyAny>) -> PyResult<u32> {
    number("max_held_limit", value)
}

/// Returns the times and metas of a frame.
fn times(
    pts: Option<&Bound<'_, PyAny>>,
    duration: Option<&Bound<'_, PyAny>>,
    metas: Option<&Bound<'_, PyAny>>,
) -> PyResult<Times> {
    let pts = pts.map(|pts| number("pts", pts)).transpose()?;
    let duration = duration.map(|duration| number("duration", duration)).transpose()?;
    Ok(Times { pts, duration, metadata: metas::to_metadata(metas)? })
}

fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("{name} is {value}, but must be a number of seconds")))
}

/// Returns the GPU of a `device` argument; `None` for host memory.
fn gpu_of(device: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Device>> {
    Ok(match Wanted::of(device)? {
        Wanted::Gpu(device) => Some(device),
        Wanted::Exporters | Wanted::Host => None,
    })
}

/// Returns the numerator and denominator of a rate: a number, a fraction, a pair or "30/1".
fn rate_of(rate: &Bound<'_, PyAny>) -> PyResult<(u32, u32)> {
    let invalid = || {
        PyValueError::new_err(format!(
            "rate is {rate}, but must be frames per second: a number, a fraction, or a pair of numbers"
        ))
    };
    let checked = |pair: (u32, u32)| match pair {
        (0, _) => Err(PyValueError::new_err(format!(
            "rate is {rate}, but must be more than 0, or None if frames have no fixed rate"
        ))),
        (_, 0) => Err(invalid()),
        pair => Ok(pair),
    };
    if let Ok(pair) = rate.cast::<PyTuple>() {
        return checked(pair.extract().map_err(|_| invalid())?);
    }
    let fraction = rate.py().import("fractions")?.getattr("Fraction")?;
    let is_number = rate.is_instance_of::<PyInt>() || rate.is_instance_of::<PyFloat>();
    if !is_number && !rate.is_instance_of::<PyString>() && !rate.is_instance(&fraction)? {
        return Err(PyTypeError::new_err(invalid().value(rate.py()).to_string()));
    }
    let exact = fraction.call1((rate,)).map_err(|_| invalid())?;
    // 29.97 is meant as 30000/1001.
    let near = if rate.is_instance_of::<PyFloat>() {
        let whole = exact.call_method1("__round__", ())?.extract::<i64>().map_err(|_| invalid())?;
        let ntsc = fraction.call1((1000 * whole, 1001))?;
        let distance = ntsc.sub(&exact)?.call_method0("__abs__")?.extract::<f64>()?;
        let value = rate.extract::<f64>()?;
        if value.fract() != 0.0 && distance < 0.005 {
            ntsc
        } else {
            exact.call_method1("limit_denominator", (1001,))?
        }
    } else {
        exact
    };
    let part = |name| near.getattr(name)?.extract::<u32>().map_err(|_| invalid());
    checked((part("numerator")?, part("denominator")?))
}

/// Creates a stream of raw video, and returns its exporter; readers open it by the name.
///
/// `format` is a name of GStreamer, such as "NV12", "RGB" or "GRAY8"; `rate` the frames per second,
/// if they do not vary; `colorimetry` a name such as "bt709". Frames lie in host memory, or with
/// `device` (a number, "cuda:0" or a UUID) on a GPU, in memory of the kind `memory`: "vmm", "pool"
/// or "legacy", by default the best one of the machine.
///
/// `slow_readers` says what happens to lossless readers that hold all frames they may: the exporter
/// waits ("wait"), frames wait for them ("queue"), or the readers are disconnected then
/// ("disconnect"); each waits no longer than `reader_timeout` seconds. With `history=1`,
/// readers that join later get the last frame, if none has followed it for 200 ms. A reader may
/// hold `max_held_limit` frames at once, up to 64, if it asks for as many.
#[pyfunction]
#[pyo3(signature = (
    name, *, format, width, height, rate = None, colorimetry = None, device = None, memory = None,
    max_slots = 512, slow_readers = "wait", reader_timeout = 5.0, history = 0, max_held_limit = 16
))]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
pub fn create(
    py: Python<'_>,
    #[pyo3(from_py_with = name::of)] name: String,
    format: &str,
    width: &Bound<'_, PyAny>,
    height: &Bound<'_, PyAny>,
    rate: Option<&Bound<'_, PyAny>>,
    colorimetry: Option<&str>,
    device: Option<&Bound<'_, PyAny>>,
    memory: Option<&str>,
    #[pyo3(from_py_with = max_slots_of)] max_slots: u32,
    slow_readers: &str,
    reader_timeout: f64,
    #[pyo3(from_py_with = history_of)] history: u32,
    #[pyo3(from_py_with = max_held_limit_of)] max_held_limit: u32,
) -> PyResult<Exporter> {
    let (width, height) = (number("width", width)?, number("height", height)?);
    if width == 0 || height == 0 {
        return Err(PyValueError::new_err(format!("the size is {width}x{height}, but must not be 0")));
    }
    let (numerator, denominator) = rate.filter(|rate| !rate.is_none()).map_or(Ok((0, 1)), rate_of)?;
    let mut video = VideoFormat::new(format.parse().or_raise()?, width, height).rate(numerator, denominator);
    if let Some(colorimetry) = colorimetry {
        let caps = format!(
            "video/x-raw, format={format}, width={width}, height={height}, colorimetry={colorimetry}"
        );
        let found = VideoFormat::of_caps(&caps).or_raise()?.colorimetry;
        if found.to_string() != colorimetry {
            return Err(PyValueError::new_err(format!(
                "invalid colorimetry {colorimetry:?} for {format}: expected a name of GStreamer, such as \"bt709\", \
                 \"bt601\" or \"bt2020\" for YUV and \"sRGB\" for RGB"
            )));
        }
        video.colorimetry = found;
    }
    let options = Options { max_slots, max_held_limit, slow_readers, reader_timeout, history };
    let mut config = options.config()?;
    let kind = match memory {
        None | Some("host") => None,
        Some("vmm") => Some(MemoryKind::Vmm),
        Some("pool") => Some(MemoryKind::Pool),
        Some("legacy") => Some(MemoryKind::Legacy),
        Some(other) => {
            return Err(PyValueError::new_err(format!(
                "invalid memory {other:?}: expected \"vmm\", \"pool\" or \"legacy\""
            )));
        }
    };
    let device = gpu_of(device)?;
    match (&device, memory) {
        (None, Some(kind)) if kind != "host" => {
            return Err(PyValueError::new_err(format!(
                "memory {kind:?} is GPU memory: name a GPU, such as device=0"
            )));
        }
        (Some(_), Some("host")) => {
            return Err(PyValueError::new_err("memory \"host\" needs device=\"cpu\""));
        }
        (Some(device), _) => config = py.detach(|| config.on_gpu(device)).or_raise()?.memory(kind),
        _ => {}
    }
    let (gpu, timeout) = (config.gpu.clone(), config.reader_timeout);
    let layout = Video::new(video.clone())?;
    let engine = py.detach(|| VideoExporter::open(&name, config, video)).or_raise()?;
    Ok(Exporter(Arc::new(Shared::new(&name, Engine::Video(engine), Some(layout), gpu, timeout))))
}

/// Creates a stream of data of a media type: the exporter publishes bytes.
#[pyfunction]
#[pyo3(signature = (name, caps, *, max_slots, slow_readers, reader_timeout, history, max_held_limit))]
#[expect(clippy::too_many_arguments, reason = "keywords in Python")]
pub fn _create_data(
    py: Python<'_>,
    name: &str,
    caps: &str,
    #[pyo3(from_py_with = max_slots_of)] max_slots: u32,
    slow_readers: &str,
    reader_timeout: f64,
    #[pyo3(from_py_with = history_of)] history: u32,
    #[pyo3(from_py_with = max_held_limit_of)] max_held_limit: u32,
) -> PyResult<Exporter> {
    let options = Options { max_slots, max_held_limit, slow_readers, reader_timeout, history };
    let (endpoint, config) = (Endpoint::of_text(name).or_raise()?, options.config()?);
    let timeout = config.reader_timeout;
    let engine = py.detach(|| exporter::Exporter::bind(&endpoint, config, on_notice)).or_raise()?;
    engine.set_format(Format { caps: caps.to_owned(), video: None });
    Ok(Exporter(Arc::new(Shared::new(name, Engine::Data(engine), None, None, timeout))))
}

fn on_notice(notice: Notice) {
    log::info!(target: "frameshare", "{notice:?}");
}

impl Exporter {
    /// Checks that arrays lie where the frames do.
    fn check_place(&self, arrays: &[Array]) -> PyResult<()> {
        let wanted = self.0.place();
        for array in arrays {
            let fits = match (array.place, wanted) {
                (Place::Gpu(None), Place::Gpu(_)) => true,
                (found, wanted) => found == wanted,
            };
            if !fits {
                let advice = match wanted {
                    Place::Host => {
                        "copy it there (tensor.cpu(), cupy.asnumpy), or create the stream with device=0"
                    }
                    Place::Gpu(_) => "copy it there, or create the stream with device=\"cpu\"",
                };
                return Err(PyValueError::new_err(format!(
                    "cannot publish {array} {}: frames of {} are {wanted}; {advice}",
                    array.place, self.0.name
                )));
            }
        }
        Ok(())
    }

    /// Returns a frame of video to be written; waits for a slot if all are in use.
    fn frame(&self, py: Python<'_>, limit: Deadline) -> PyResult<NewFrame> {
        let Engine::Video(video) = self.0.engine()? else {
            return Err(Error::new_err(format!(
                "{} is a stream of data, whose frames have no planes: use publish",
                self.0.name
            )));
        };
        self.0.acquire(py, limit, |wait| video.acquire(wait))
    }

    /// Publishes bytes.
    fn publish_data(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        times: &Times,
        limit: Deadline,
    ) -> PyResult<u64> {
        let array = Array::of(data, None)?;
        let size = array.bytes().filter(|_| array.place == Place::Host && array.is_dense_from(0));
        let size = size.filter(|size| *size > 0).ok_or_else(|| {
            PyValueError::new_err(format!(
                "cannot publish {array}: expected bytes, at least one, in host memory"
            ))
        })?;
        let (engine, bytes) = (self.0.engine()?, size as u64);
        let slot = self.0.acquire(py, limit, |wait| engine.exporter().acquire(bytes, Purpose::Copy, wait))?;
        py.detach(|| target::copy_on_host(&slot, &[target::Copied::of_bytes(array.start, size)]));
        self.0.publish_data(py, &slot, bytes, times, limit)
    }
}

#[pymethods]
impl Exporter {
    /// The name or path of the stream.
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The place of the frames: "cpu", or "cuda:" and the number of the GPU in this process.
    #[getter]
    fn device(&self) -> String {
        let gpu = self.0.gpu.as_ref();
        gpu.map_or_else(|| "cpu".into(), |gpu| format!("cuda:{}", gpu.device().ordinal()))
    }

    /// Number of present readers.
    #[getter]
    fn readers(&self, py: Python<'_>) -> PyResult<usize> {
        let engine = self.0.engine()?;
        Ok(py.detach(|| engine.exporter().reader_count()))
    }

    /// Publishes a copy of an array or tensor, and returns the sequence number of the frame.
    ///
    /// `data` is one array of the whole frame, or a list of one for each plane. One on a GPU is
    /// copied on `stream`: by default the current stream of PyTorch or CuPy, for other libraries
    /// the legacy default stream. So the array may be changed at once by work on that stream.
    ///
    /// `pts` and `duration` are ns, `pts` of `time.monotonic_ns()`, by default the present time;
    /// `metas` are names with dictionaries of values. Waits for lossless readers without room, for
    /// `timeout` seconds at most, with the wait for a free slot.
    #[pyo3(signature = (data, pts = None, *, duration = None, metas = None, stream = None, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords in Python")]
    fn publish(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        pts: Option<&Bound<'_, PyAny>>,
        duration: Option<&Bound<'_, PyAny>>,
        metas: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let limit = Deadline::after(timeout)?;
        let times = times(pts, duration, metas)?;
        let stream = stream.filter(|stream| !stream.is_none()).map(Handle::of).transpose()?;
        let Some(video) = &self.0.video else { return self.publish_data(py, data, &times, limit) };
        let (arrays, by_plane) = array::all_of(data, stream)?;
        self.check_place(&arrays)?;
        let copies = video.copies(&arrays, by_plane)?;
        let frame = self.frame(py, limit)?;
        let Some(gpu) = &self.0.gpu else {
            py.detach(|| target::copy_on_host(frame.slot(), &copies));
            return self.0.publish_frame(py, &frame, None, &times, limit);
        };
        // Planes of one frame come from one library: they have one stream.
        let handle = arrays.iter().find_map(|array| array.stream).unwrap_or(Handle::DEFAULT);
        if arrays.iter().any(|array| array.stream.is_some_and(|other| other != handle)) {
            return Err(PyValueError::new_err(
                "the planes are written on several streams: name the one that waits for the others, as stream",
            ));
        }
        let stream = py.detach(|| handle.open(gpu))?;
        // Refused before anything is queued: the copy would become a part of the graph.
        py.detach(|| stream.check_uncaptured()).or_raise()?;
        let copied = py.detach(|| {
            let copied = target::copy_on_gpu(frame.slot(), &copies, &stream);
            // The objects of arrays on a GPU are dropped on any thread: see `Array`.
            self.0.drop_after(&stream, Arc::new(arrays));
            copied
        });
        let published = copied.and_then(|()| self.0.publish_frame(py, &frame, Some(&stream), &times, limit));
        if published.is_err() {
            // The copy may be under way: the slot is free when it has ended.
            py.detach(|| self.0.drop_after(&stream, frame.slot().clone()));
        }
        published
    }

    /// Returns a free slot, to be written in place and published at the end of a `with` block; an
    /// exception in the block discards it.
    ///
    /// On a GPU, `stream` is one that writes the frame, besides those that get its planes by
    /// DLPack.
    #[pyo3(signature = (pts = None, *, duration = None, metas = None, stream = None, timeout = None))]
    fn acquire(
        &self,
        py: Python<'_>,
        pts: Option<&Bound<'_, PyAny>>,
        duration: Option<&Bound<'_, PyAny>>,
        metas: Option<&Bound<'_, PyAny>>,
        stream: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<slot::Slot> {
        let times = times(pts, duration, metas)?;
        // Refused before a slot is taken.
        let stream = stream.filter(|stream| !stream.is_none()).map(NamedStream::of).transpose()?;
        let frame = self.frame(py, Deadline::after(timeout)?)?;
        let writing = Writing::new(frame, self.0.gpu.clone());
        if let Some(stream) = stream {
            writing.used_on(stream);
        }
        Ok(slot::Slot::new(Arc::clone(&self.0), writing, times))
    }

    /// Marks the end of the stream for readers, until the next frame.
    fn end(&self, py: Python<'_>) -> PyResult<()> {
        let engine = self.0.engine()?;
        py.detach(|| engine.exporter().end_of_stream());
        Ok(())
    }

    /// Waits until lossless readers have released all frames; false after `timeout` seconds.
    #[pyo3(signature = (timeout = None))]
    fn drain(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let (engine, limit) = (self.0.engine()?, Deadline::after(timeout)?);
        loop {
            let drained = py.detach(|| engine.exporter().drain(Wait::For(limit.slice())));
            match drained {
                Ok(true) => return Ok(true),
                Ok(false) if limit.is_over() => return Ok(false),
                Ok(false) => py.check_signals()?,
                Err(error) => return Err(Error::new_err(error.to_string())),
            }
        }
    }

    /// Waits for the first reader, for `timeout` seconds at most.
    #[pyo3(signature = (timeout = None))]
    fn wait_for_reader(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let (engine, limit) = (self.0.engine()?, Deadline::after(timeout)?);
        while !py.detach(|| engine.exporter().wait_for_reader(Wait::For(limit.slice()))).or_raise()? {
            if limit.is_over() {
                return Err(self.0.timeout("no reader of", "came", limit));
            }
            py.check_signals()?;
        }
        Ok(())
    }

    /// Ends the stream. Readers keep the frames that they hold.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.0.close())
    }

    /// Whether `close` was called.
    #[getter]
    fn closed(&self) -> PyResult<bool> {
        self.0.is_closed()
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err("exporters cannot be pickled: a stream has one exporter, in one process"))
    }

    fn __repr__(&self) -> String {
        let format = match &self.0.video {
            Some(video) => {
                let VideoFormat { pixels, width, height, .. } = &video.format;
                format!("{pixels} {width}x{height}")
            }
            None => "data".into(),
        };
        let state = if self.closed().unwrap_or(false) { " (closed)" } else { "" };
        format!("<frameshare.Exporter {:?}: {format} on {}{state}>", self.0.name, self.device())
    }
}
