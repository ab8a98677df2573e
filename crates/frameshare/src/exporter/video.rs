// SPDX-License-Identifier: MIT OR Apache-2.0

//! An exporter of raw video, in host memory or on a GPU.
//!
//! # Safety
//!
//! A [`NewFrame`] is the only holder of its slot, which was free when it was acquired: no
//! publication in it is leased, readers have mapped it for reading only, and this process has no
//! other reference to its bytes until it is published, which ends the access of the frame. The same
//! holds for a slot that [`Exporter::filled`] has acquired and not yet returned.
#![allow(unsafe_code)]

use super::{AcquireError, BindError, Config, Draft, Exporter, Frame, Notice, PublishError, Purpose, Slot};
use crate::{
    Endpoint, EndpointError, Wait,
    fence::Written,
    memory::Address,
    monotonic_ns,
    video::{PlaneLayout, VideoError, VideoFormat},
};
use frameshare_cuda::{context::Context, stream::Stream};
use frameshare_protocol::{Plane, Sequence, message};
use std::{
    io, slice,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

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
    /// Frames of host memory were asked for, and slots are in GPU memory.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An exporter of raw video. Clones share it; dropping the last one ends the stream for its
/// readers. All methods may be called from any thread.
///
/// ```
/// use frameshare::{Wait, exporter::VideoExporter, video::VideoFormat};
/// # let folder = tempfile::tempdir()?;
/// # let stream = folder.path().join("cam0.sock");
/// # let stream = stream.to_str().ok_or("path")?;
/// let format = VideoFormat::new("GRAY8".parse()?, 640, 480).rate(30, 1);
/// let exporter = VideoExporter::new(stream, format)?; // a name such as "cam0", or a path
/// let mut frame = exporter.acquire(Wait::Forever)?;
/// frame.row_mut(0, 479).fill(255); // row 479 of plane 0
/// exporter.publish(&frame, Wait::Forever)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct VideoExporter {
    exporter: Exporter,
    gpu: Option<Arc<Context>>,
    /// Read during each publication: a new format waits for those of the former one.
    layout: Arc<RwLock<Arc<Layout>>>,
}

/// A format, and the places of its frames' planes.
#[derive(Debug)]
struct Layout {
    format: VideoFormat,
    entries: Vec<Plane>,
    planes: Vec<PlaneLayout>,
    size: u64,
}

impl Layout {
    fn of(format: VideoFormat) -> Result<Self, VideoError> {
        let (entries, size) = (format.default_planes()?, format.size()?);
        let planes = (0..entries.len()).map(|plane| format.plane(plane, &entries, size));
        Ok(Self { planes: planes.collect::<Result<_, _>>()?, entries, size, format })
    }

    fn to_format(&self) -> message::Format {
        let VideoFormat { pixels, width, height, .. } = self.format;
        let video = message::Video { format: pixels.name().to_owned(), width, height };
        message::Format { caps: self.format.to_caps(), video: Some(video) }
    }

    /// Duration of a frame in ns, if the rate is fixed.
    fn duration(&self) -> Option<u64> {
        let rate = self.format.rate?;
        (1_000_000_000 * u64::from(rate.denominator)).checked_div(rate.numerator.into())
    }
}

impl VideoExporter {
    /// Opens a stream by its name or path ([`Endpoint::of_text`]) with default settings.
    ///
    /// # Errors
    /// [`VideoExporterError`] for an invalid name or format, and for a stream that is in use.
    pub fn new(stream: &str, format: VideoFormat) -> Result<Self, VideoExporterError> {
        Self::open(stream, Config::default(), format)
    }

    /// Opens a stream with a configuration. Frames are in GPU memory if it names a GPU: work of its
    /// context writes them. Notices go to the log.
    ///
    /// ```no_run
    /// use frameshare::{Wait, exporter::{Config, VideoExporter}, video::VideoFormat};
    /// use frameshare::cuda::{Device, Stream};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::default().on_gpu(&Device::find("0")?)?; // a number, or a UUID
    /// let stream = Stream::new(config.gpu.as_ref().ok_or("no GPU")?)?;
    /// let format = VideoFormat::new("NV12".parse()?, 1920, 1080).rate(30, 1);
    /// let exporter = VideoExporter::open("cam0", config, format)?;
    /// let frame = exporter.acquire(Wait::Forever)?;
    /// let luma = frame.device_pointer(0);
    /// // ... queue work on `stream` that writes there ...
    /// exporter.publish_on(&frame, &stream, Wait::Forever)?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`VideoExporter::new`], for an invalid configuration, and if the GPU has no memory that
    /// can be shared.
    pub fn open(stream: &str, config: Config, format: VideoFormat) -> Result<Self, VideoExporterError> {
        let endpoint = Endpoint::of_text(stream)?;
        let on_notice = |notice| log::info!(target: "frameshare", "{notice:?}");
        Self::bind(&endpoint, config, format, on_notice)
    }

    /// Opens a stream, as [`Exporter::bind`].
    ///
    /// # Errors
    /// As [`VideoExporter::open`].
    pub fn bind(
        endpoint: &Endpoint,
        config: Config,
        format: VideoFormat,
        on_notice: impl Fn(Notice) + Send + Sync + 'static,
    ) -> Result<Self, VideoExporterError> {
        // Before the stream opens: no reader sees one without a format.
        let layout = Arc::new(Layout::of(format)?);
        let gpu = config.gpu.clone();
        let exporter = Exporter::bind(endpoint, config, on_notice)?;
        exporter.set_format(layout.to_format());
        Ok(Self { exporter, gpu, layout: Arc::new(RwLock::new(layout)) })
    }

    /// Sets the format of the following frames. Frames that were acquired before cannot be
    /// published. Waits for publications under way.
    ///
    /// # Errors
    /// [`VideoError`] if the size of the frames overflows.
    pub fn set_format(&self, format: VideoFormat) -> Result<(), VideoError> {
        let new = Arc::new(Layout::of(format)?);
        let mut layout = self.layout.write().unwrap_or_else(PoisonError::into_inner);
        self.exporter.set_format(new.to_format());
        *layout = new;
        Ok(())
    }

    /// Returns a frame to be written and published. Its former content is undefined. Waits for a
    /// slot if all are in use, as [`Exporter::acquire`] for a copy.
    ///
    /// # Errors
    /// [`AcquireError`] if no slot can be allocated or becomes free.
    pub fn acquire(&self, wait: Wait) -> Result<NewFrame, AcquireError> {
        let layout = Arc::clone(&self.layout());
        let slot = self.exporter.acquire(layout.size, Purpose::Copy, wait)?;
        Ok(NewFrame {
            slot: Draft::new(slot, self.gpu.as_ref()),
            layout,
            pts: None,
            duration: None,
            metadata: Vec::new(),
            is_shared: AtomicBool::new(false),
        })
    }

    /// Publishes a frame to every reader, and returns its sequence number. One in GPU memory is
    /// ready behind all work of the context; [`VideoExporter::publish_on`] is cheaper. The slot is
    /// free when readers have released it and the frame is dropped.
    ///
    /// Waits for lossless readers, as [`Exporter::publish`]; after an error no reader has the
    /// frame, and it can be published again.
    ///
    /// # Errors
    /// [`VideoExporterError::Publish`] if readers made no room in time, the wait was interrupted,
    /// or the frame is another exporter's; [`VideoExporterError::FormerFormat`].
    pub fn publish(&self, frame: &NewFrame, wait: Wait) -> Result<Sequence, VideoExporterError> {
        let is_host = frame.slot.as_ptr().is_some();
        self.publish_written(frame, if is_host { Written::Cpu } else { Written::Somewhere }, wait)
    }

    /// Publishes a frame in GPU memory, which is ready behind the work queued on `stream` so far.
    /// Does not wait for the GPU.
    ///
    /// # Errors
    /// As [`VideoExporter::publish`].
    pub fn publish_on(
        &self,
        frame: &NewFrame,
        stream: &Stream,
        wait: Wait,
    ) -> Result<Sequence, VideoExporterError> {
        self.publish_written(frame, Written::On(stream), wait)
    }

    fn publish_written(
        &self,
        frame: &NewFrame,
        written: Written<'_>,
        wait: Wait,
    ) -> Result<Sequence, VideoExporterError> {
        let layout = self.layout();
        let described = self.describe_in(&layout, frame, written).inspect_err(|_| {
            // The work that writes the slot may be of another context.
            if let Written::On(stream) = written {
                let _ = self.exporter.drop_after(stream, Box::new(Slot::clone(&frame.slot)));
            }
        })?;
        frame.slot.for_publication();
        let sequence = self.exporter.publish(described, wait)?;
        // Nothing writes the bytes before: the frame is borrowed.
        frame.is_shared.store(true, Relaxed);
        Ok(sequence)
    }

    fn layout(&self) -> RwLockReadGuard<'_, Arc<Layout>> {
        self.layout.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a publication of a frame, for fields that [`NewFrame`] does not have, to be passed
    /// to [`Exporter::publish`] before the format changes. The frame is read-only from now on.
    ///
    /// # Errors
    /// [`VideoExporterError::FormerFormat`].
    pub fn describe<'a>(
        &self,
        frame: &'a NewFrame,
        written: Written<'a>,
    ) -> Result<Frame<'a>, VideoExporterError> {
        frame.is_shared.store(true, Relaxed);
        self.describe_in(&self.layout(), frame, written)
    }

    fn describe_in<'a>(
        &self,
        layout: &Arc<Layout>,
        frame: &'a NewFrame,
        written: Written<'a>,
    ) -> Result<Frame<'a>, VideoExporterError> {
        if !Arc::ptr_eq(&frame.layout, layout) && frame.slot.belongs_to(&self.exporter) {
            return Err(VideoExporterError::FormerFormat);
        }
        Ok(Frame {
            pts: Some(frame.pts.unwrap_or_else(monotonic_ns)),
            duration: frame.duration.or_else(|| frame.layout.duration()),
            planes: &frame.layout.entries,
            metadata: &frame.metadata,
            ..Frame::new(&frame.slot, frame.layout.size, written)
        })
    }

    /// The format of the frames.
    pub fn format(&self) -> VideoFormat {
        self.layout().format.clone()
    }

    /// The exporter, for events, statistics and the end of the stream.
    pub fn exporter(&self) -> &Exporter {
        &self.exporter
    }
}

impl Exporter {
    /// Returns a slot in host memory whose first `size` bytes `fill` has written, for frames of any
    /// media. Waits for a slot if all are in use, as [`Exporter::acquire`] for a copy. Their former
    /// content is undefined.
    ///
    /// ```
    /// # use frameshare::{Endpoint, Wait, exporter::{Config, Exporter, Frame}, fence::Written};
    /// # let folder = tempfile::tempdir()?;
    /// # let endpoint = Endpoint::at(folder.path().join("s.sock"))?;
    /// # let exporter = Exporter::bind(&endpoint, Config::default(), |_| ())?;
    /// let slot = exporter.filled(4, Wait::Forever, |bytes| bytes.copy_from_slice(b"unit"))?;
    /// exporter.publish(Frame::new(&slot, 4, Written::Cpu), Wait::Forever)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`VideoExporterError::Acquire`] if no slot can be allocated or becomes free;
    /// [`VideoExporterError::Io`] if slots are in GPU memory ([`Exporter::use_host_memory`]).
    pub fn filled(
        &self,
        size: u64,
        wait: Wait,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<Slot, VideoExporterError> {
        let slot = self.acquire(size, Purpose::Copy, wait)?;
        let Some(start) = slot.as_ptr() else {
            return Err(io::Error::other("slots are in GPU memory: use_host_memory sets host memory").into());
        };
        // SAFETY: the slot has at least this size, and was free: see the header.
        fill(unsafe { slice::from_raw_parts_mut(start.as_ptr(), size as usize) });
        Ok(slot)
    }
}

/// A frame that is written, and then published. Dropped unpublished, it returns to the exporter.
#[derive(Debug)]
pub struct NewFrame {
    slot: Draft,
    layout: Arc<Layout>,
    /// Presentation time, in ns of `CLOCK_MONOTONIC`; the time of publication by default.
    pub pts: Option<u64>,
    /// Duration in ns; that of the format's rate by default.
    pub duration: Option<u64>,
    /// Metadata, defined by the publisher.
    pub metadata: Vec<u8>,
    /// Readers may have the frame, or another holder of the slot may publish it: its bytes are not
    /// written any more.
    is_shared: AtomicBool,
}

impl NewFrame {
    /// The places of the planes.
    pub fn planes(&self) -> &[PlaneLayout] {
        &self.layout.planes
    }

    /// The place of a plane.
    ///
    /// # Errors
    /// [`VideoError::NoSuchPlane`].
    pub fn plane(&self, plane: usize) -> Result<&PlaneLayout, VideoError> {
        let name = self.layout.format.pixels.name();
        let count = self.planes().len();
        self.planes().get(plane).ok_or(VideoError::NoSuchPlane { index: plane, name, count })
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.layout.size
    }

    /// The frame's slot, for callers that write through its address: before the publication, on the
    /// streams that the publication names, or on one that [`Exporter::drop_after`] gets with the
    /// slot. [`bytes_mut`](Self::bytes_mut) is empty from now on.
    pub fn slot(&self) -> &Slot {
        self.is_shared.store(true, Relaxed);
        &self.slot
    }

    /// The address of the slot. A frame whose address in GPU memory was given out, and that is
    /// dropped unpublished, is written again when all work of the exporter's context is done.
    pub fn address(&self) -> Address {
        self.slot.expose()
    }

    /// The CUDA device pointer of the first row of a plane; `None` in host memory, and if there is
    /// no plane of this number. Work that writes there is queued before the publication. See
    /// [`NewFrame::address`].
    pub fn device_pointer(&self, plane: usize) -> Option<u64> {
        match self.address() {
            Address::Device(start) => Some(start + self.planes().get(plane)?.offset as u64),
            Address::Host(_) => None,
        }
    }

    /// All bytes of the frame; none in GPU memory, and none once it is published or its
    /// [`slot`](Self::slot) was given out.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let is_shared = *self.is_shared.get_mut();
        let Some(start) = self.slot.as_ptr().filter(|_| !is_shared) else { return &mut [] };
        // SAFETY: the slot has at least this size, and `self`, borrowed exclusively, is its only
        // user: see the header.
        unsafe { slice::from_raw_parts_mut(start.as_ptr(), self.layout.size as usize) }
    }

    /// The bytes of a plane; empty if there is none of this number.
    pub fn plane_mut(&mut self, plane: usize) -> &mut [u8] {
        let range = self.planes().get(plane).map(|plane| plane.range.clone()).unwrap_or_default();
        self.bytes_mut().get_mut(range).unwrap_or_default()
    }

    /// The bytes of a row of a plane, from the top, without padding; empty outside the plane.
    pub fn row_mut(&mut self, plane: usize, row: usize) -> &mut [u8] {
        let range = self.planes().get(plane).and_then(|plane| plane.range_of(row)).unwrap_or_default();
        self.plane_mut(plane).get_mut(range).unwrap_or_default()
    }
}
