// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames.

use crate::{error::OrRaise, layout::ArrayLayout, lease::Holder, plane::Plane};
use frameshare::{
    cuda::Context,
    monotonic_ns, reader,
    video::{self, VideoError, VideoFormat},
};
use pyo3::{
    exceptions::PyTypeError,
    prelude::*,
    types::{PyBytes, PyTuple},
};
use std::{fmt::Debug, sync::Arc};

/// A frame that this process holds. Its memory returns to the exporter when the frame and all arrays of it are gone.
#[pyclass(frozen, module = "frameshare", weakref)]
#[derive(Debug)]
pub struct Frame {
    holder: Arc<Holder>,
    info: Info,
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
    format: Result<VideoFormat, VideoError>,
}

impl Frame {
    /// A frame, and the context of its stream.
    pub fn new(mut frame: reader::Frame, gpu: Option<Arc<Context>>) -> Self {
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
            format: frame.format().cloned(),
            metadata: frame.take_metadata(),
        };
        Self { holder: Arc::new(Holder::new(frame, gpu)), info }
    }

    fn video(&self) -> PyResult<&VideoFormat> {
        self.info.format.as_ref().or_raise()
    }

    fn plane_of(&self, frame: &reader::Frame, index: usize) -> PyResult<Plane> {
        let plane = frame.plane(index).or_raise()?;
        let array = ArrayLayout::of(self.video()?.pixels, plane.layout());
        Ok(Plane::new(Arc::clone(&self.holder), index, plane.layout().clone(), array))
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

    /// Metadata of the publication, as the exporter wrote it.
    #[getter]
    fn metas<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.info.metadata)
    }

    /// All planes.
    #[getter]
    fn planes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let lease = self.holder.lease()?;
        let count = self.video()?.pixels.plane_count();
        let planes: PyResult<Vec<Plane>> =
            (0..count).map(|index| self.plane_of(lease.frame(), index)).collect();
        PyTuple::new(py, planes?.into_iter().map(|plane| Py::new(py, plane)).collect::<PyResult<Vec<_>>>()?)
    }

    /// Returns a plane, counted from 0.
    fn plane(&self, index: usize) -> PyResult<Plane> {
        self.plane_of(self.holder.lease()?.frame(), index)
    }

    /// Releases the frame, before it is garbage. Later use raises `ReleasedError`.
    ///
    /// Raises `BufferError` if arrays or tensors of its memory still exist.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.holder.release())
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

    /// Releases the frame. With an exception under way, whose traceback may hold arrays, they keep it.
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
             pickle a copy (numpy.array(frame.plane(0))), or let the other process open the stream",
        ))
    }

    fn __repr__(&self) -> String {
        let format = match &self.info.format {
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

    /// The field of GStreamer's caps.
    fn __str__(&self) -> String {
        self.0.to_string()
    }

    fn __repr__(&self) -> String {
        format!("<frameshare.Colorimetry {}>", self.0)
    }
}
