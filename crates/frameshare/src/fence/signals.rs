// SPDX-License-Identifier: MIT OR Apache-2.0

//! Signals of one frame to all its readers.

use super::{FenceError, FenceFault, failed};
use frameshare_cuda::{context::Context, event::Event, fence::timeline::Page, stream::Stream};
use frameshare_protocol::FenceKind;
use std::sync::Arc;

/// The writer of a frame.
#[derive(Clone, Copy, Debug)]
pub enum Written<'a> {
    /// The CPU: the frame is complete. Not for frames that GPU readers get.
    Cpu,
    /// Work queued on this stream before.
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
    /// Recorded behind the work that writes the present frame.
    written: Event,
    /// Stream that writes timeline values.
    stream: Arc<Stream>,
    words: Vec<(Arc<Page>, usize, u64)>,
}

impl Signals {
    /// Signals for frames of a context's device; `None` for host frames.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn new(gpu: Option<&Arc<Context>>) -> frameshare_cuda::Result<Self> {
        let Some(gpu) = gpu else { return Ok(Self(None)) };
        let stream = Arc::new(Stream::new(gpu)?);
        Ok(Self(Some(Gpu { written: Event::new(gpu)?, stream, words: Vec::new() })))
    }

    /// Begins the signals of a frame.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn begin(&mut self, written: Written<'_>) -> frameshare_cuda::Result<()> {
        let Some(gpu) = &mut self.0 else { return Ok(()) };
        gpu.words.clear();
        match written {
            Written::Cpu => Ok(()),
            Written::On(stream) => {
                stream.check_uncaptured()?;
                gpu.written.record(stream)
            }
            Written::Somewhere => gpu.written.record_context(),
        }
    }

    /// Has the signal stream wait for the work that writes the present frame: some readers get the
    /// frame later (see [`Signals::begin_earlier`]).
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails.
    pub fn hold(&self) -> Result<(), FenceError> {
        let held = self.0.as_ref().map_or(Ok(()), |gpu| gpu.stream.wait(&gpu.written));
        held.map_err(failed(FenceKind::None))
    }

    /// Begins the signals of frames that were held before.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn begin_earlier(&mut self) -> frameshare_cuda::Result<()> {
        let Some(gpu) = &mut self.0 else { return Ok(()) };
        gpu.words.clear();
        gpu.written.record(&gpu.stream)
    }

    /// Makes a stream of this process wait for the work that writes the present frame.
    pub(crate) fn order(&self, stream: &Stream) -> frameshare_cuda::Result<()> {
        self.0.as_ref().map_or(Ok(()), |gpu| stream.wait(&gpu.written))
    }

    /// The stream that writes timeline values.
    pub(super) fn stream(&self) -> Option<&Arc<Stream>> {
        self.0.as_ref().map(|gpu| &gpu.stream)
    }

    /// The event that a reader's own signal stream has to wait for.
    pub(super) fn written(&self, kind: FenceKind) -> Result<&Event, FenceError> {
        match &self.0 {
            Some(gpu) => Ok(&gpu.written),
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
    /// frame.
    ///
    /// # Errors
    /// [`FenceError`] if the driver fails.
    pub fn flush(&mut self) -> Result<(), FenceError> {
        let Some(gpu) = self.0.as_mut().filter(|gpu| !gpu.words.is_empty()) else { return Ok(()) };
        let words: Vec<_> =
            gpu.words.iter().filter_map(|(page, word, value)| Some((page.word(*word)?, *value))).collect();
        let signal = || {
            gpu.stream.wait(&gpu.written)?;
            gpu.stream.write_words(&words)
        };
        let signaled = signal().map_err(failed(FenceKind::Timeline));
        drop(words);
        gpu.words.clear();
        signaled
    }
}
