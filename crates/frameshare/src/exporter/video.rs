// SPDX-License-Identifier: MIT OR Apache-2.0

//! An exporter of raw video, in host memory or on a GPU.
//!
//! # Safety
//!
//! A [`NewFrame`] is the only holder of its slot, which was free when it was acquired: no
//! publication in it is leased, readers have mapped it for reading only, and this process has no
//! other reference to its bytes until it is published, which consumes the frame. The same holds for
//! a slot that [`Exporter::filled`] has acquired and not yet returned.
#![allow(unsafe_code)]

use super::{AcquireError, BindError, Config, Draft, Exporter, Frame, PublishError, Purpose, Slot};
use crate::{
    Endpoint, EndpointError, Interrupt,
    fence::Written,
    memory::Address,
    monotonic_ns,
    video::{PlaneLayout, VideoError, VideoFormat},
};
use frameshare_cuda::{context::Context, stream::Stream};
use frameshare_protocol::{Plane, Sequence, message};
use std::{io, slice, sync::Arc};

/// The reason why frames cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VideoExporterError {
    /// The text is neither a name nor a path.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The format has no layout.
    #[error(transparent)]
    Format(#[from] VideoError),
    /// The stream cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// There is no slot for a frame.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The frame was not published.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The format was set after the frame was acquired.
    #[error("the frame has the format before the present one: write a frame acquired after set_format")]
    FormerFormat,
    /// A descriptor could not be made.
    #[error("cannot open a stream: {0}")]
    Io(#[from] io::Error),
}

/// An exporter of raw video; dropping it ends the stream for its readers.
///
/// ```
/// use frameshare::{exporter::VideoExporter, video::VideoFormat};
/// # let folder = tempfile::tempdir()?;
/// # let stream = folder.path().join("cam0.sock");
/// # let stream = stream.to_str().ok_or("path")?;
/// let format = VideoFormat::new("GRAY8".parse()?, 640, 480).rate(30, 1);
/// let mut exporter = VideoExporter::new(stream, format)?; // a name such as "cam0", or a path
/// let mut frame = exporter.frame()?;
/// frame.row_mut(0, 479).fill(255); // row 479 of plane 0
/// exporter.publish(frame)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct VideoExporter {
    exporter: Exporter,
    interrupt: Interrupt,
    format: VideoFormat,
    planes: Vec<Plane>,
    size: u64,
    /// Number of formats so far.
    formats: u64,
}

impl VideoExporter {
    /// Opens a stream by its name or path ([`Endpoint::of_text`]) with default settings.
    ///
    /// # Errors
    /// [`VideoExporterError`] for an invalid name or format, and for a stream that is in use.
    pub fn new(stream: &str, format: VideoFormat) -> Result<Self, VideoExporterError> {
        let endpoint = Endpoint::of_text(stream)?;
        let on_notice = |notice| log::info!(target: "frameshare", "{notice:?}");
        Self::with(Exporter::bind(&endpoint, Config::default(), on_notice)?, format)
    }

    /// Opens a stream of frames in GPU memory, which work of this context writes; otherwise as
    /// [`VideoExporter::new`].
    ///
    /// ```no_run
    /// use frameshare::{cuda::{Context, Device, Stream}, exporter::VideoExporter, video::VideoFormat};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let context = Context::primary(&Device::find("0")?)?;
    /// let stream = Stream::new(&context)?;
    /// let format = VideoFormat::new("NV12".parse()?, 1920, 1080).rate(30, 1);
    /// let exporter = VideoExporter::on_gpu("cam0", format, &context)?;
    /// let frame = exporter.frame()?;
    /// let luma = frame.device_pointer(0);
    /// // ... queue work on `stream` that writes there ...
    /// exporter.publish_on(frame, &stream)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`VideoExporter::new`], and if the GPU has no memory that can be shared.
    pub fn on_gpu(
        stream: &str,
        format: VideoFormat,
        context: &Arc<Context>,
    ) -> Result<Self, VideoExporterError> {
        let endpoint = Endpoint::of_text(stream)?;
        let on_notice = |notice| log::info!(target: "frameshare", "{notice:?}");
        let config = Config::default().gpu(Some(Arc::clone(context)));
        Self::over(Exporter::bind(&endpoint, config, on_notice)?, format)
    }

    /// Exports video with an exporter, whose slots are in host memory from now on.
    ///
    /// # Errors
    /// [`VideoExporterError`] if the size of the frames overflows.
    pub fn with(exporter: Exporter, format: VideoFormat) -> Result<Self, VideoExporterError> {
        exporter.use_host_memory(true);
        Self::over(exporter, format)
    }

    /// Exports video with an exporter, whose slots are where its configuration says.
    fn over(exporter: Exporter, format: VideoFormat) -> Result<Self, VideoExporterError> {
        let (planes, size, interrupt) = (format.default_planes()?, format.size()?, Interrupt::new()?);
        let mut new = Self { exporter, interrupt, format: format.clone(), planes, size, formats: 0 };
        new.set_format(format)?;
        Ok(new)
    }

    /// Sets the format of the following frames. Frames that were acquired before cannot be
    /// published.
    ///
    /// # Errors
    /// [`VideoError`] if the size of the frames overflows.
    pub fn set_format(&mut self, format: VideoFormat) -> Result<(), VideoError> {
        (self.planes, self.size) = (format.default_planes()?, format.size()?);
        let VideoFormat { pixels, width, height, .. } = format;
        let video = message::Video { format: pixels.name().to_owned(), width, height };
        self.exporter.set_format(message::Format { caps: format.to_caps(), video: Some(video) });
        self.format = format;
        self.formats += 1;
        Ok(())
    }

    /// Returns a frame to be written and published. Its former content is undefined. Waits for a
    /// slot if all are in use.
    ///
    /// # Errors
    /// [`VideoExporterError::Acquire`] if no slot can be allocated or becomes free.
    pub fn frame(&self) -> Result<NewFrame, VideoExporterError> {
        let slot = match self.exporter.acquire(self.size, Purpose::Copy) {
            Err(why @ (AcquireError::Exhausted { .. } | AcquireError::Memory(_))) => {
                self.exporter.wait_for_slot(self.size, why, &self.interrupt)?
            }
            slot => slot?,
        };
        let planes = 0..self.planes.len();
        let planes = planes.map(|plane| self.format.plane(plane, &self.planes, self.size));
        let (planes, size, format) = (planes.collect::<Result<_, _>>()?, self.size, self.formats);
        let on_gpu = slot.as_ptr().is_none();
        let gpu = on_gpu.then(|| self.exporter.0.shared.lock().gpu().cloned()).flatten();
        let slot = Draft::new(slot, gpu.as_ref());
        Ok(NewFrame { slot, planes, size, format, pts: None, metadata: Vec::new() })
    }

    /// Publishes a frame to every reader, and returns its sequence number. One in GPU memory is
    /// ready behind all work of the context; [`VideoExporter::publish_on`] is cheaper.
    ///
    /// # Errors
    /// [`VideoExporterError::Publish`] if a wait for a lossless reader was interrupted, or the
    /// frame is another exporter's; [`VideoExporterError::FormerFormat`].
    pub fn publish(&self, frame: NewFrame) -> Result<Sequence, VideoExporterError> {
        let is_host = frame.slot.as_ptr().is_some();
        self.publish_written(frame, if is_host { Written::Cpu } else { Written::Somewhere })
    }

    /// Publishes a frame in GPU memory, which is ready behind the work queued on `stream` so far.
    /// Does not wait for the GPU.
    ///
    /// # Errors
    /// As [`VideoExporter::publish`].
    pub fn publish_on(&self, frame: NewFrame, stream: &Stream) -> Result<Sequence, VideoExporterError> {
        self.publish_written(frame, Written::On(stream))
    }

    fn publish_written(&self, frame: NewFrame, written: Written<'_>) -> Result<Sequence, VideoExporterError> {
        if frame.format != self.formats && frame.slot.belongs_to(&self.exporter) {
            return Err(VideoExporterError::FormerFormat);
        }
        let duration = self.format.rate.and_then(|rate| {
            (1_000_000_000 * u64::from(rate.denominator)).checked_div(rate.numerator.into())
        });
        let places = frame.planes.iter().map(PlaneLayout::to_plane).collect::<Vec<_>>();
        let described = Frame {
            pts: Some(frame.pts.unwrap_or_else(monotonic_ns)),
            duration,
            planes: &places,
            metadata: &frame.metadata,
            ..Frame::new(frame.slot.for_publication(), frame.size, written)
        };
        Ok(self.exporter.publish(described, &self.interrupt)?)
    }

    /// The format of the frames.
    pub fn format(&self) -> &VideoFormat {
        &self.format
    }

    /// The exporter, for events, statistics and the end of the stream.
    pub fn exporter(&self) -> &Exporter {
        &self.exporter
    }

    /// A handle that ends waits for readers and slots from other threads.
    pub fn interrupt(&self) -> Interrupt {
        self.interrupt.clone()
    }
}

impl Exporter {
    /// Returns a slot in host memory whose first `size` bytes `fill` has written, for frames of any
    /// media. Waits for a slot if all are in use. Their former content is undefined.
    ///
    /// ```
    /// # use frameshare::{Endpoint, Interrupt, exporter::{Config, Exporter, Frame}, fence::Written};
    /// # let folder = tempfile::tempdir()?;
    /// # let endpoint = Endpoint::at(folder.path().join("s.sock"))?;
    /// # let (exporter, interrupt) = (Exporter::bind(&endpoint, Config::default(), |_| ())?, Interrupt::new()?);
    /// exporter.use_host_memory(true);
    /// let slot = exporter.filled(4, &interrupt, |bytes| bytes.copy_from_slice(b"unit"))?;
    /// exporter.publish(Frame::new(&slot, 4, Written::Cpu), &interrupt)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`VideoExporterError::Acquire`] if no slot can be allocated or becomes free;
    /// [`VideoExporterError::Io`] if slots are in GPU memory ([`Exporter::use_host_memory`]).
    pub fn filled(
        &self,
        size: u64,
        interrupt: &Interrupt,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Slot, VideoExporterError> {
        let slot = match self.acquire(size, Purpose::Copy) {
            Err(why @ (AcquireError::Exhausted { .. } | AcquireError::Memory(_))) => {
                self.wait_for_slot(size, why, interrupt)?
            }
            slot => slot?,
        };
        let Some(start) = slot.as_ptr() else {
            return Err(io::Error::other("slots are in GPU memory: use_host_memory sets host memory").into());
        };
        // SAFETY: the slot has at least this size, and was free: see the header.
        fill(unsafe { slice::from_raw_parts_mut(start.as_ptr(), size as usize) });
        Ok(slot)
    }
}

/// A frame that is written, and then published.
#[derive(Debug)]
pub struct NewFrame {
    slot: Draft,
    planes: Vec<PlaneLayout>,
    size: u64,
    /// The number of its format.
    format: u64,
    /// Presentation time, in ns of `CLOCK_MONOTONIC`; the time of publication by default.
    pub pts: Option<u64>,
    /// Metadata, defined by the publisher.
    pub metadata: Vec<u8>,
}

impl NewFrame {
    /// The places of the planes.
    pub fn planes(&self) -> &[PlaneLayout] {
        &self.planes
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The CUDA device pointer of the first row of a plane; `None` in host memory, and if there is
    /// no plane of this number. Work that writes there is queued before the publication. A frame
    /// that is dropped instead is written again when all work of the exporter's context is done.
    pub fn device_pointer(&self, plane: usize) -> Option<u64> {
        match self.slot.expose() {
            Address::Device(start) => Some(start + self.planes.get(plane)?.offset as u64),
            Address::Host(_) => None,
        }
    }

    /// All bytes of the frame; none in GPU memory.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let Some(start) = self.slot.as_ptr() else { return &mut [] };
        // SAFETY: the slot has at least this size, and `self`, borrowed exclusively, is its only
        // user: see the header.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.size as usize) }
    }

    /// The bytes of a plane; empty if there is none of this number.
    pub fn plane_mut(&mut self, plane: usize) -> &mut [u8] {
        let range = self.planes.get(plane).map(|plane| plane.range.clone()).unwrap_or_default();
        self.bytes_mut().get_mut(range).unwrap_or_default()
    }

    /// The bytes of a row of a plane, from the top, without padding; empty outside the plane.
    pub fn row_mut(&mut self, plane: usize, row: usize) -> &mut [u8] {
        let range = self.planes.get(plane).and_then(|plane| plane.range_of(row)).unwrap_or_default();
        self.plane_mut(plane).get_mut(range).unwrap_or_default()
    }
}
