// SPDX-License-Identifier: MIT OR Apache-2.0

//! The engine's exporter of a stream, shared by the class `Exporter` and its slots.
//!
//! Waits for lossless readers and for slots release the GIL, and last for
//! [`SLICE`](crate::wait::SLICE) at most, after which Python handles its signals. Nothing is lost
//! in between: a frame that had no room is published again.

use super::{array::Place, target::Video};
use crate::{
    error::{ClosedError, Error, OrRaise, TimeoutError, ToException},
    fork::{OfProcess, Process},
    wait::Deadline,
};
use frameshare::{
    Wait,
    cuda::{Context, Stream},
    drop_behind,
    exporter::{AcquireError, Exporter, Frame, NewFrame, PublishError, Slot, VideoExporter},
    fence::Written,
    monotonic_ns,
};
use pyo3::prelude::*;
use std::{
    any::Any,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Times and metadata of a frame.
#[derive(Clone, Debug, Default)]
pub struct Times {
    pub pts: Option<u64>,
    pub duration: Option<u64>,
    pub metadata: Vec<u8>,
}

/// The engine's exporter.
#[derive(Clone)]
pub enum Engine {
    Video(VideoExporter),
    /// Of a stream of data, whose frames have any size.
    Data(Exporter),
}

impl Engine {
    pub fn exporter(&self) -> &Exporter {
        match self {
            Self::Video(video) => video.exporter(),
            Self::Data(exporter) => exporter,
        }
    }
}

/// The exporter of one stream, shared by the class and its slots.
pub struct Shared {
    pub name: String,
    process: Process,
    /// `None` after `close`.
    engine: Mutex<Option<OfProcess<Engine>>>,
    /// `None` for a stream of data.
    pub video: Option<Video>,
    pub gpu: Option<Arc<Context>>,
    reader_timeout: Duration,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Shared {
    /// A stream of this process.
    pub fn new(
        name: &str,
        engine: Engine,
        video: Option<Video>,
        gpu: Option<Arc<Context>>,
        reader_timeout: Duration,
    ) -> Self {
        Self {
            name: name.to_owned(),
            process: Process::current(),
            engine: Mutex::new(Some(OfProcess::new(engine))),
            video,
            gpu,
            reader_timeout,
        }
    }

    /// Ends the stream. Called without the GIL.
    ///
    /// # Errors
    /// `Error` in a forked child.
    pub fn close(&self) -> PyResult<()> {
        self.check_process()?;
        let engine = self.lock().take();
        if let Some(engine) = engine {
            engine.exporter().end_of_stream();
        }
        Ok(())
    }

    /// Returns whether `close` was called.
    ///
    /// # Errors
    /// `Error` in a forked child.
    pub fn is_closed(&self) -> PyResult<bool> {
        self.check_process()?;
        Ok(self.lock().is_none())
    }

    fn lock(&self) -> MutexGuard<'_, Option<OfProcess<Engine>>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The engine's exporter.
    ///
    /// # Errors
    /// `ClosedError` after `close`, `Error` in a forked child.
    pub fn engine(&self) -> PyResult<Engine> {
        self.check_process()?;
        let closed =
            || ClosedError::new_err(format!("the exporter of {} was closed by this process", self.name));
        self.lock().as_ref().map(|engine| Engine::clone(engine)).ok_or_else(closed)
    }

    /// Checks that this is no forked child, before a lock is taken that another thread of the
    /// parent may have held at the fork.
    ///
    /// # Errors
    /// `Error` in a child.
    pub fn check_process(&self) -> PyResult<()> {
        if self.process.is_current() {
            return Ok(());
        }
        Err(Error::new_err(format!(
            "the exporter of {} belongs to the parent of this forked child, process {}: create a stream of another \
             name in the child",
            self.name,
            std::process::id()
        )))
    }

    /// The place of the frames.
    pub fn place(&self) -> Place {
        let number = |gpu: &Arc<Context>| Place::Gpu(Some(gpu.device().ordinal() as i64));
        self.gpu.as_ref().map_or(Place::Host, number)
    }

    /// Returns what `attempt` acquires; repeats it until the limit if all slots are in use.
    pub fn acquire<T: Send>(
        &self,
        py: Python<'_>,
        limit: Deadline,
        attempt: impl Fn(Wait) -> Result<T, AcquireError> + Sync,
    ) -> PyResult<T> {
        // As long as the engine waits for a slot: two times the limit of a reader.
        let last = Instant::now().checked_add(self.reader_timeout.saturating_mul(2));
        loop {
            match py.detach(|| attempt(Wait::For(limit.slice()))) {
                Ok(acquired) => return Ok(acquired),
                Err(AcquireError::Exhausted { .. } | AcquireError::Memory(_)) if limit.is_over() => {
                    return Err(self.timeout("no slot of", "became free", limit));
                }
                Err(AcquireError::Exhausted { .. } | AcquireError::Memory(_))
                    if last.is_none_or(|last| Instant::now() < last) =>
                {
                    py.check_signals()?;
                }
                Err(error) => return Err(error.to_exception()),
            }
        }
    }

    /// Drops `what` when the work queued on a stream so far is done. If no event follows that work,
    /// as during a capture of the stream, all work of its context is waited for.
    pub fn drop_after<T: Any + Send + Clone>(&self, stream: &Stream, what: T) {
        let pin = |what| self.engine()?.exporter().drop_after(stream, Box::new(what)).or_raise();
        if pin(what.clone()).is_err() {
            drop_behind(stream.context(), None, what);
        }
    }

    pub fn timeout(&self, what: &str, event: &str, limit: Deadline) -> PyErr {
        TimeoutError::new_err(format!("{what} {} {event} within {} s", self.name, limit.seconds()))
    }

    /// Publishes a frame of video within a limit, and returns the sequence number.
    pub fn publish_frame(
        &self,
        py: Python<'_>,
        frame: &NewFrame,
        written: Option<&Stream>,
        times: &Times,
        limit: Deadline,
    ) -> PyResult<u64> {
        let Engine::Video(video) = self.engine()? else { return Err(Error::new_err("a stream of data")) };
        let written = written.map_or(Written::Cpu, Written::On);
        self.publish(py, times, limit, &video.describe(frame, written).or_raise()?)
    }

    /// Publishes a slot of data within a limit, and returns the sequence number.
    pub fn publish_data(
        &self,
        py: Python<'_>,
        slot: &Slot,
        size: u64,
        times: &Times,
        limit: Deadline,
    ) -> PyResult<u64> {
        self.publish(py, times, limit, &Frame::new(slot, size, Written::Cpu))
    }

    fn publish(
        &self,
        py: Python<'_>,
        times: &Times,
        limit: Deadline,
        described: &Frame<'_>,
    ) -> PyResult<u64> {
        let engine = self.engine()?;
        let (pts, duration) = (times.pts.unwrap_or_else(monotonic_ns), times.duration.or(described.duration));
        let (slot, size, written, planes) =
            (described.slot, described.size, described.written, described.planes);
        loop {
            let published = py.detach(|| {
                let (pts, metadata) = (Some(pts), &times.metadata[..]);
                let frame = Frame { pts, duration, planes, metadata, ..Frame::new(slot, size, written) };
                engine.exporter().publish(frame, Wait::For(limit.slice()))
            });
            match published {
                Ok(sequence) => return Ok(sequence.0),
                Err(PublishError::NoRoom) if limit.is_over() => {
                    return Err(self.timeout("readers of", "had no room for the frame", limit));
                }
                Err(PublishError::NoRoom) => py.check_signals()?,
                Err(error) => return Err(error.to_exception()),
            }
        }
    }
}
