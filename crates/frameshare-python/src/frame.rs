// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames.

use crate::{
    cuda_stream::{Handle, NamedStream},
    error::OrRaise,
    events::Tags,
    export::{
        consumer::Consumer,
        copy,
        exported::{Exported, Shown},
    },
    fork::OfProcess,
    gpu::Gpu,
    layouts::{Layouts, PlaneArray},
    lease::{Holder, Lease},
    memory::Memory,
    plane::Plane,
    publish::metas,
};
use frameshare::{
    monotonic_ns, reader,
    video::{self, VideoFormat},
};
use pyo3::{
    exceptions::{PyBufferError, PyIndexError, PyTypeError},
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyTuple},
};
use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Weak, atomic::Ordering},
};

/// A frame that this process holds. Its memory returns to the exporter when the frame and all
/// arrays of it are gone.
#[pyclass(extends = Exported, frozen, module = "frameshare", weakref)]
#[derive(Debug)]
pub struct Frame {
    holder: Arc<Holder>,
    info: Arc<Info>,
}

/// The description of a frame, which outlives its release.
#[derive(Debug)]
struct Info {
    sequence: u64,
    session: u64,
    pts: Option<u64>,
    duration: Option<u64>,
    published: u64,
    lost_before: u64,
    device: Option<usize>,
    metadata: Vec<u8>,
    tags: Arc<Tags>,
    layouts: Arc<Layouts>,
}

impl Frame {
    /// A frame, the context of its stream, the tags that apply to it, and its layout.
    pub fn new(
        mut frame: reader::Frame,
        gpu: Option<Arc<Gpu>>,
        tags: Arc<Tags>,
        layouts: Arc<Layouts>,
    ) -> Self {
        let descriptor = frame.descriptor();
        let device = gpu.as_ref().filter(|_| frame.is_on_gpu()).map(|gpu| gpu.device().ordinal());
        let info = Info {
            sequence: descriptor.sequence.0,
            session: frame.session(),
            pts: descriptor.pts,
            duration: descriptor.duration,
            published: descriptor.published,
            lost_before: frame.lost_before(),
            device,
            tags,
            layouts,
            metadata: frame.take_metadata(),
        };
        let sequence = info.sequence;
        Self::of(sequence, Lease::new(Memory::Leased(OfProcess::new(frame)), gpu), Arc::new(info))
    }

    /// A reference to the lease that does not hold it.
    pub fn watch(&self) -> Weak<Lease> {
        self.holder.watch()
    }

    /// Sequence number in the stream.
    pub fn number(&self) -> u64 {
        self.info.sequence
    }

    fn of(sequence: u64, lease: Lease, info: Arc<Info>) -> Self {
        Self { holder: Arc::new(Holder::new(sequence, lease)), info }
    }

    fn video(&self) -> PyResult<&VideoFormat> {
        self.info.layouts.format().or_raise()
    }

    fn plane_of(&self, index: usize, plane: &Arc<PlaneArray>) -> Plane {
        Plane::new(Arc::clone(&self.holder), index, Arc::clone(plane))
    }
}

impl<'py> IntoPyObject<'py> for Frame {
    type Target = Self;
    type Output = Bound<'py, Self>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, Self>> {
        let exported = Exported::new(Arc::clone(&self.holder), Shown::Frame(Arc::clone(&self.info.layouts)));
        Bound::new(py, (self, exported))
    }
}

#[pymethods]
impl Frame {
    /// Sequence number in the stream, counted from 1.
    #[getter]
    fn sequence(&self) -> u64 {
        self.info.sequence
    }

    /// The run of the stream that the frame belongs to; sequence numbers are unique within one.
    #[getter]
    fn session(&self) -> u64 {
        self.info.session
    }

    /// Presentation time in ns of `time.monotonic_ns()`, if there is one.
    #[getter]
    fn pts(&self) -> Option<u64> {
        self.info.pts
    }

    /// Duration in ns, if known.
    #[getter]
    fn duration(&self) -> Option<u64> {
        self.info.duration
    }

    /// Seconds since the frame was published.
    #[getter]
    fn age(&self) -> f64 {
        monotonic_ns().saturating_sub(self.info.published) as f64 / 1e9
    }

    /// Number of frames lost between the previous frame and this one.
    #[getter]
    fn lost_before(&self) -> u64 {
        self.info.lost_before
    }

    /// Name of the pixel format, as in GStreamer's caps.
    #[getter]
    fn format(&self) -> PyResult<&'static str> {
        Ok(self.video()?.pixels.name())
    }

    /// Width in pixels.
    #[getter]
    fn width(&self) -> PyResult<u32> {
        Ok(self.video()?.width)
    }

    /// Height in rows.
    #[getter]
    fn height(&self) -> PyResult<u32> {
        Ok(self.video()?.height)
    }

    /// Meaning of the samples as colors.
    #[getter]
    fn colorimetry(&self) -> PyResult<Colorimetry> {
        Ok(Colorimetry(self.video()?.colorimetry))
    }

    /// The place of the memory: "cpu", or "cuda:" and the number of the GPU in this process.
    #[getter]
    fn device(&self) -> String {
        self.info.device.map_or_else(|| "cpu".into(), |ordinal| format!("cuda:{ordinal}"))
    }

    /// Metas of the frame: names, each with a dictionary of values.
    #[getter]
    fn metas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        metas::to_python(py, &self.info.metadata)
    }

    /// Metadata of the publication, as the exporter wrote it.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.info.metadata)
    }

    /// Tags of the stream and the medium that apply to the frame: names, with a tuple of values
    /// each.
    #[getter]
    fn tags<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.info.tags.to_dict(py)
    }

    /// All planes.
    #[getter]
    fn planes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.holder.lease()?;
        let planes = self.info.layouts.planes()?.iter().enumerate();
        let planes = planes.map(|(index, plane)| self.plane_of(index, plane).into_pyobject(py));
        PyTuple::new(py, planes.collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns a plane, counted from 0.
    fn plane(&self, index: i64) -> PyResult<Plane> {
        self.holder.lease()?;
        let planes = self.info.layouts.planes()?;
        let found = usize::try_from(index).ok().and_then(|index| Some((index, planes.get(index)?)));
        let (index, plane) = found.ok_or_else(|| {
            PyIndexError::new_err(format!("no plane {index}: the frame has {}", planes.len()))
        })?;
        Ok(self.plane_of(index, plane))
    }

    /// Names a stream on which the frame's memory is used: its release follows the work that is
    /// queued there until then. A number is a cudaStream_t; 0 and 1 are the legacy default stream,
    /// 2 is that of each thread. A stream of PyTorch, CuPy or another library is kept until then;
    /// one that only has a number must not be destroyed before the release (see `done_on`).
    ///
    /// Not needed for the stream that an array was imported on.
    fn used_on(&self, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let lease = self.holder.lease()?;
        match (lease.memory(), lease.gpu()) {
            (Memory::Leased(frame), Some(gpu)) => {
                Consumer::of_object(stream, &lease, gpu)?.delay_release(frame);
                Ok(())
            }
            (Memory::Gpu(_), Some(gpu)) => Consumer::of_object(stream, &lease, gpu).map(drop),
            // Nothing to wait for; a wrong argument is an error there, too.
            _ => Handle::of(stream).map(drop),
        }
    }

    /// Ends the use of the frame's memory on a stream: the release follows the work that is queued
    /// there now, and none that is queued later. The stream may be destroyed after this. To use the
    /// frame there again, name the stream again.
    fn done_on(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        let lease = self.holder.lease()?;
        let name = NamedStream::of(stream)?;
        if let Some(gpu) = lease.gpu() {
            let stream = name.handle.open(gpu)?;
            py.detach(|| match lease.memory() {
                Memory::Leased(frame) => frame.done_on(&stream).or_raise(),
                Memory::Gpu(copy) => copy.done_on(&stream).or_raise(),
                Memory::Host(_) => Ok(()),
            })?;
        }
        lease.forget(name.handle);
        Ok(())
    }

    /// Returns a private copy, on the same device, that may be written. It holds no lease.
    fn clone(&self, py: Python<'_>) -> PyResult<Self> {
        let lease = self.holder.lease()?;
        let (memory, gpu) = copy::whole(py, &lease)?;
        Ok(Self::of(self.info.sequence, Lease::new(memory, gpu), Arc::clone(&self.info)))
    }

    /// Returns a copy of all bytes of a frame in host memory, of whatever media.
    fn tobytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let lease = self.holder.lease()?;
        let Some(frame) = lease.memory().leased().filter(|frame| !frame.is_on_gpu()) else {
            return Err(PyBufferError::new_err(
                "only frames of the exporter in host memory have bytes: open the stream with device=\"cpu\"",
            ));
        };
        PyBytes::new_with(py, frame.len(), |target| {
            match frame.slice() {
                Some(bytes) => target.copy_from_slice(bytes),
                None => {
                    let bytes = target.iter_mut().zip(frame.bytes());
                    bytes.for_each(|(target, byte)| *target = byte.load(Ordering::Relaxed));
                }
            }
            Ok(())
        })
    }

    /// Releases the frame, before it is garbage. Later use raises `ReleasedError`.
    ///
    /// Raises `BufferError` if arrays or tensors of its memory still exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        // The driver may block. For host memory, Python's threads need not wait for each other.
        if self.info.device.is_some() { py.detach(|| self.holder.release()) } else { self.holder.release() }
    }

    /// Whether the frame was released.
    #[getter]
    fn released(&self) -> bool {
        self.holder.is_released()
    }

    fn __enter__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, Self>> {
        slf.get().holder.lease()?;
        Ok(slf)
    }

    /// Releases the frame. Under an exception, whose traceback may hold arrays, they keep it.
    #[pyo3(signature = (kind, _value, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<&Bound<'_, PyAny>>,
        _value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let released = self.release(py);
        if kind.is_some() { Ok(()) } else { released }
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(PyTypeError::new_err(
            "frames cannot be pickled: their memory is the exporter's, and is held for this process alone; \
             copy with frame.clone() here, pickle an array (numpy.array(frame.plane(0))), or let the other \
             process open the stream",
        ))
    }

    fn __repr__(&self) -> String {
        let format = match self.info.layouts.format() {
            Ok(format) => format!("{} {}x{}", format.pixels, format.width, format.height),
            Err(_) => "no raw video".into(),
        };
        let state = if self.released() { ", released" } else { "" };
        format!("<frameshare.Frame {}: {format} on {}{state}>", self.info.sequence, self.device())
    }
}

/// The meaning of samples as colors, in the names of GStreamer.
#[pyclass(frozen, eq, module = "frameshare")]
#[derive(Debug, PartialEq)]
pub struct Colorimetry(video::Colorimetry);

/// The name of a value: "bt709", "bt2020-10".
fn name_of(value: &impl Debug) -> String {
    match format!("{value:?}").to_lowercase().replace('_', "-") {
        name if name == "aribstdb67" => "arib-std-b67".into(),
        name => name,
    }
}

#[pymethods]
impl Colorimetry {
    /// Matrix from RGB to YUV: "bt601", "bt709", "bt2020", "smpte240m", "fcc", "rgb" or "unknown".
    #[getter]
    fn matrix(&self) -> String {
        name_of(&self.0.matrix)
    }

    /// Range of the samples: "full", "limited" or "unknown".
    #[getter]
    fn range(&self) -> String {
        name_of(&self.0.range)
    }

    /// Transfer function: "bt709", "srgb", "smpte2084", ...
    #[getter]
    fn transfer(&self) -> String {
        name_of(&self.0.transfer)
    }

    /// Color primaries: "bt709", "bt2020", "smpte170m", ...
    #[getter]
    fn primaries(&self) -> String {
        name_of(&self.0.primaries)
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        // Equal values have equal names.
        self.0.to_string().hash(&mut hasher);
        hasher.finish()
    }

    /// The field of GStreamer's caps.
    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<frameshare.Colorimetry {}>", self.0)
    }
}
