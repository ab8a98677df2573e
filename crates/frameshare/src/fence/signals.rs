// SPDX-License-Identifier: MIT OR Apache-2.0

//! Signals of one frame to all its readers.

use super::{FenceError, FenceFault, failed};
use crate::{
    gpu::DropWhenIdle,
    sys::{Mapping, Words, memfd},
};
use frameshare_cuda::{
    Status,
    context::Context,
    event::Event,
    fence::{Kind, supports, timeline::Page},
    host::Access,
    stream::Stream,
};
use frameshare_protocol::FenceKind;
use std::sync::Arc;

/// The writer of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Written<'a> {
    /// The CPU: the frame is complete. Not for frames that GPU readers get.
    Cpu,
    /// Work queued on this stream, of any context, before.
    On(&'a Stream),
    /// Work of the exporter's context on any stream.
    Somewhere,
}

/// The exporter's signal stream. Streams that write frames never touch shared state: this stream
/// waits for them and signals, so that a reader can stall only itself.
#[derive(Debug)]
pub struct Signals(Option<Gpu>);

#[derive(Debug)]
struct Gpu {
    context: Arc<Context>,
    /// Recorded behind the work that writes a frame, each held by the publication of that frame.
    events: Vec<Arc<Event>>,
    /// Index of the present frame's.
    written: usize,
    /// Stream that writes timeline values.
    stream: Arc<Stream>,
    words: Vec<(Arc<Page>, usize, u64)>,
    /// A timeline of the exporter's own, which no reader can write: the mark of the newest frame
    /// whose signals were written. `None` if the GPU has no timelines.
    marks: Option<Arc<Page>>,
    next_mark: u64,
}

/// The work that writes a frame. See [`Signals::is_writing`].
#[derive(Debug)]
pub struct Writing {
    event: Arc<Event>,
    mark: u64,
    /// The signal stream writes the mark.
    is_marked: bool,
}

impl Gpu {
    fn new(context: &Arc<Context>) -> frameshare_cuda::Result<Self> {
        Ok(Self {
            context: context.clone(),
            events: vec![Arc::new(Event::new(context)?)],
            written: 0,
            stream: Arc::new(Stream::new(context)?),
            words: Vec::new(),
            marks: new_marks(context),
            next_mark: 1,
        })
    }

    /// Takes an event that no publication holds, for the present frame, and returns it.
    fn renew_written(&mut self) -> frameshare_cuda::Result<Arc<Event>> {
        let spare = self.events.iter().position(|event| Arc::strong_count(event) == 1);
        if spare.is_none() {
            self.events.push(Arc::new(Event::new(&self.context)?));
        }
        self.written = spare.unwrap_or(self.events.len() - 1);
        Ok(self.written().clone())
    }

    fn written(&self) -> &Arc<Event> {
        &self.events[self.written]
    }
}

impl Signals {
    /// Signals for frames of a context's device; `None` for host frames.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn new(gpu: Option<&Arc<Context>>) -> frameshare_cuda::Result<Self> {
        Ok(Self(gpu.map(Gpu::new).transpose()?))
    }

    /// Begins the signals of a frame. Returns the work that writes it, unless that is the CPU's.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn begin(&mut self, written: Written<'_>) -> frameshare_cuda::Result<Option<Writing>> {
        let Some(gpu) = &mut self.0 else { return Ok(None) };
        gpu.words.clear();
        match written {
            Written::Cpu => return Ok(None),
            Written::On(stream) if stream.context().as_raw() == gpu.context.as_raw() => {
                gpu.renew_written()?.record_uncaptured(stream)?;
            }
            // On a stream that exists, which costs less than `record_uncaptured` does here.
            Written::On(stream) => {
                gpu.stream.wait_for(stream)?;
                gpu.renew_written()?.record(&gpu.stream)?;
            }
            Written::Somewhere => gpu.renew_written()?.record_context()?,
        }
        let mark = gpu.next_mark;
        gpu.next_mark += 1;
        Ok(Some(Writing { event: gpu.written().clone(), mark, is_marked: false }))
    }

    /// Keeps an event for later frames, so that publications create none: while another thread
    /// frees GPU memory, the driver may let none be created. No more than `most` events are kept.
    pub fn keep_event(&mut self, event: Event, most: usize) {
        if let Some(gpu) = self.0.as_mut().filter(|gpu| gpu.events.len() < most) {
            gpu.events.push(Arc::new(event));
        }
    }

    /// Returns whether the work that writes a frame is under way. Failed work writes nothing any
    /// more. Without a call of the driver if timeline values were written behind it.
    pub fn is_writing(&self, writing: &Writing) -> bool {
        let marks = self.0.as_ref().and_then(|gpu| gpu.marks.as_ref()?.word(0));
        let is_reached = marks.is_some_and(|reached| reached.load() >= writing.mark);
        !(writing.is_marked && is_reached) && matches!(writing.event.query(), Ok(Status::Pending))
    }

    /// Has the signal stream wait for the work that writes the present frame: some readers get the
    /// frame later (see [`Signals::begin_earlier`]).
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails.
    pub fn hold(&self) -> Result<(), FenceError> {
        let held = self.0.as_ref().map_or(Ok(()), |gpu| gpu.stream.wait(gpu.written()));
        held.map_err(failed(FenceKind::None))
    }

    /// Begins the signals of frames that were held before.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn begin_earlier(&mut self) -> frameshare_cuda::Result<()> {
        let Some(gpu) = &mut self.0 else { return Ok(()) };
        gpu.words.clear();
        gpu.renew_written()?.record(&gpu.stream)
    }

    /// The event behind the work that writes the present frame. It is not recorded again while this
    /// is held.
    pub(crate) fn present(&self) -> Option<Arc<Event>> {
        self.0.as_ref().map(|gpu| gpu.written().clone())
    }

    /// The stream that writes timeline values.
    pub(super) fn stream(&self) -> Option<&Arc<Stream>> {
        self.0.as_ref().map(|gpu| &gpu.stream)
    }

    /// The event that a reader's own signal stream has to wait for.
    pub(super) fn written(&self, kind: FenceKind) -> Result<&Event, FenceError> {
        match &self.0 {
            Some(gpu) => Ok(gpu.written()),
            None => Err(FenceError { kind, cause: FenceFault::NoGpu }),
        }
    }

    /// Adds a timeline value to be written behind the frame.
    pub(super) fn add_word(&mut self, page: &Arc<Page>, word: usize, value: u64) -> Result<(), FenceError> {
        let Some(gpu) = &mut self.0 else {
            return Err(FenceError { kind: FenceKind::Timeline, cause: FenceFault::NoGpu });
        };
        gpu.words.push((page.clone(), word, value));
        Ok(())
    }

    /// Signals the timeline values of all readers in one call, behind the work that writes the
    /// frame, and its mark in `writing`.
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails.
    pub fn flush(&mut self, writing: Option<&mut Writing>) -> Result<(), FenceError> {
        let Some(gpu) = self.0.as_mut().filter(|gpu| !gpu.words.is_empty()) else { return Ok(()) };
        if let (Some(marks), Some(writing)) = (&gpu.marks, writing) {
            gpu.words.push((marks.clone(), 0, writing.mark));
            writing.is_marked = true;
        }
        let words: Vec<_> =
            gpu.words.iter().filter_map(|(page, word, value)| Some((page.word(*word)?, *value))).collect();
        let signal = || {
            gpu.stream.wait(gpu.written())?;
            gpu.stream.write_words(&words)
        };
        let signaled = signal().map_err(failed(FenceKind::Timeline));
        drop(words);
        gpu.words.clear();
        signaled
    }
}

impl Drop for Gpu {
    /// Unregisters the marks when the context is idle: the driver blocks in that call, with locks
    /// held that all its calls need, until every stream of the context is.
    fn drop(&mut self) {
        if let Some(marks) = self.marks.take() {
            self.words.clear();
            drop(DropWhenIdle::new(&self.context, marks));
        }
    }
}

/// Creates the timeline of an exporter's own, if the GPU has timelines.
fn new_marks(context: &Arc<Context>) -> Option<Arc<Page>> {
    const SIZE: usize = 4096;
    supports(Kind::Timeline, context.device()).ok()?;
    let file = memfd("frameshare:marks", SIZE as u64).ok()?;
    let memory = Words::from(Mapping::writable(file, SIZE).ok()?);
    Page::new(context, Arc::new(memory), Access::ReadWrite).ok().map(Arc::new)
}
