// SPDX-License-Identifier: MIT OR Apache-2.0

//! Release streams: they signal release fences behind the GPU work that reads the frames.
//!
//! A frame that is read on one known stream is released by that stream, so that frames on different
//! streams do not wait for each other, and an event follows it, for teardown. In every other case a
//! release stream waits for the readers and signals. Releases behind a whole context follow each
//! other in any case, so all connections of the context have one stream for them: a stream that
//! waits takes one of the few hardware channels of the process.
//!
//! A record behind the whole context would invalidate stream captures of other code, and is made
//! only for frames whose address was given out without a stream, or whose stream was destroyed.
//! Nothing is recorded on a stream that is being captured: the release is deferred until the
//! capture has ended.

use super::deferred_release::{DeferredReleases, Release};
use crate::{
    fence::{FenceError, FenceFault, ReaderFence},
    sys::PerProcess,
};
use frameshare_cuda::{Error, Status, context::Context, event::Event, stream::Stream};
use frameshare_protocol::{EntryIndex, FenceKind, Sequence};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, Weak,
    atomic::{AtomicBool, Ordering},
};

/// The release streams of one connection.
#[derive(Debug)]
pub(super) struct ReleaseStreams {
    context: Arc<Context>,
    prompt: Mutex<ReleaseStream>,
    /// For releases behind the whole context, of all its connections.
    common: Arc<Mutex<ReleaseStream>>,
    /// For the deferred-release thread, which may wait while it holds the lock: other threads
    /// release meanwhile.
    late: Mutex<ReleaseStream>,
    /// Events behind the releases of streams that released their frames themselves.
    ends: Mutex<Vec<End>>,
    deferred: DeferredReleases,
    /// A frame was read on unknown streams, or no event could follow a known one.
    is_trail_broken: AtomicBool,
}

/// The streams on which the application reads a frame.
#[derive(Debug, Default)]
pub(super) struct Reads {
    streams: Vec<Arc<Stream>>,
    /// Recorded behind streams on which it was read, and is read no more.
    done: Vec<Event>,
    /// Its address was given out without a stream: any stream of the context may read it.
    anywhere: bool,
}

/// An event behind the last release of a stream.
#[derive(Debug)]
struct End {
    stream: Weak<Stream>,
    done: Event,
}

/// A stream, and the event that it waits for.
#[derive(Debug)]
struct ReleaseStream {
    /// Recorded behind the work that reads a frame.
    read: Event,
    stream: Stream,
}

/// The stream of a context, which lives as long as it has connections.
struct Common {
    context: usize,
    stream: Weak<Mutex<ReleaseStream>>,
}

/// A publication, and the fence to signal for its release.
#[derive(Clone, Copy)]
pub(super) struct Released<'a> {
    pub fence: &'a dyn ReaderFence,
    pub entry: EntryIndex,
    pub sequence: Sequence,
}

impl ReleaseStreams {
    /// Creates the streams of a connection that reads frames in this context.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn new(context: &Arc<Context>) -> frameshare_cuda::Result<Self> {
        Ok(Self {
            context: context.clone(),
            prompt: Mutex::new(ReleaseStream::new(context)?),
            common: ReleaseStream::common(context)?,
            late: Mutex::new(ReleaseStream::new(context)?),
            ends: Mutex::default(),
            deferred: DeferredReleases::default(),
            is_trail_broken: AtomicBool::new(false),
        })
    }

    /// The context that frames are read in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Signals behind the work that reads the frame. Does not block; [`is_deferrable`] tells an
    /// error that passes.
    ///
    /// # Errors
    /// The failure of the fence.
    pub fn signal(&self, released: Released<'_>, reads: &Reads) -> Result<(), FenceError> {
        // Made current once for all the calls; a failure here repeats below, where it is handled.
        let _current = self.context.push();
        let is_own = |stream: &&Arc<Stream>| stream.context().as_raw() == self.context.as_raw();
        if let Some(stream) = reads.only().filter(is_own) {
            match self.signal_itself(released, stream) {
                // Destroyed: only the end of all work of the context includes its work.
                Err(error) if is_of_invalid_stream(&error) => {}
                signaled => {
                    signaled?;
                    // Behind the signal, which uses the fence, too.
                    if self.follow(stream).is_err() {
                        self.is_trail_broken.store(true, Ordering::Relaxed);
                    }
                    return Ok(());
                }
            }
        }
        self.note(reads);
        // Not with event fences, whose exporter can block the stream, and not behind streams that
        // may be of other contexts.
        let is_common = reads.is_anywhere_only() && released.fence.kind() == FenceKind::Timeline;
        released.signal_on(if is_common { &self.common } else { &self.prompt }, |own| {
            own.wait_for(reads)?;
            if reads.anywhere {
                // It is tried again later.
                self.context.check_capture_pause()?;
                own.read.record_context()?;
                own.stream.wait(&own.read)?;
            }
            Ok(())
        })
    }

    /// Signals on the stream that reads the frame.
    fn signal_itself(&self, released: Released<'_>, stream: &Stream) -> Result<(), FenceError> {
        stream.check_uncaptured().map_err(|error| released.failed(error))?;
        released.fence.signal_released(released.entry, released.sequence, stream)
    }

    /// Records an event behind the work of a stream, and drops those that this one covers.
    fn follow(&self, stream: &Arc<Stream>) -> frameshare_cuda::Result<()> {
        let mut ends = lock(&self.ends);
        let known = ends.iter().position(|end| end.stream.as_ptr() == Arc::as_ptr(stream));
        let done = |end: &End| !matches!(end.done.query(), Ok(Status::Pending));
        let place = known.or_else(|| ends.iter().position(done)).unwrap_or(ends.len());
        if place == ends.len() {
            ends.push(End { stream: Weak::new(), done: Event::new(&self.context)? });
        }
        let end = &mut ends[place];
        end.stream = Arc::downgrade(stream);
        end.done.record_uncaptured(stream)
    }

    /// As [`ReleaseStreams::signal`], but may block.
    ///
    /// # Errors
    /// The failure of the fence.
    pub fn signal_blocking(&self, released: Released<'_>, reads: &Reads) -> Result<(), FenceError> {
        self.note(reads);
        released.signal_on(&self.late, |own| {
            self.context.check_capture_pause()?;
            match own.wait_for(reads) {
                // A stream was destroyed, and the driver cannot record the end of a context's work.
                Err(Error::Missing { .. }) => {
                    reads.streams.iter().try_for_each(|stream| stream.context().synchronize())?;
                }
                waits => waits?,
            }
            if reads.anywhere {
                own.read.record_context_blocking(&own.stream)?;
                own.stream.wait(&own.read)?;
            }
            Ok(())
        })
    }

    fn note(&self, reads: &Reads) {
        if reads.anywhere {
            self.is_trail_broken.store(true, Ordering::Relaxed);
        }
    }

    /// Returns events behind the work that reads the frames released so far; `None` if only an
    /// event behind the whole context covers it, or the driver has no event left.
    pub fn trail(&self) -> Option<Vec<Event>> {
        if self.is_trail_broken.load(Ordering::Relaxed) {
            return None;
        }
        let late = lock(&self.late);
        for end in lock(&self.ends).drain(..) {
            if !matches!(end.done.query(), Ok(Status::Ready)) && late.stream.wait(&end.done).is_err() {
                self.is_trail_broken.store(true, Ordering::Relaxed);
                return None;
            }
        }
        [&lock(&self.prompt), &late]
            .into_iter()
            .map(|own| Event::behind(&own.stream, &self.context).ok())
            .collect()
    }

    /// Hands a release over to the deferred-release thread.
    pub fn defer(&self, release: Release) {
        self.deferred.push(release);
    }
}

impl Reads {
    /// Adds a stream on which the frame is read.
    pub fn on(&mut self, stream: Arc<Stream>) {
        if !self.streams.iter().any(|known| Arc::ptr_eq(known, &stream)) {
            self.streams.push(stream);
        }
    }

    /// Replaces all streams by this one. The ends of former uses stay.
    pub fn only_on(&mut self, stream: Arc<Stream>) {
        (self.streams, self.anywhere) = (vec![stream], false);
    }

    /// Replaces a stream, of any context, by an event of `context` behind its present work.
    ///
    /// # Errors
    /// Any error that the driver returns; nothing has changed then.
    pub fn done_on(&mut self, stream: &Stream, context: &Arc<Context>) -> frameshare_cuda::Result<()> {
        self.done.push(Event::behind(stream, context)?);
        self.streams.retain(|known| {
            (known.as_raw(), known.context().as_raw()) != (stream.as_raw(), stream.context().as_raw())
        });
        Ok(())
    }

    /// Adds all streams of the context.
    pub fn anywhere(&mut self) {
        self.anywhere = true;
    }

    /// Returns whether the work that reads the frame is known as that of the context only.
    fn is_anywhere_only(&self) -> bool {
        self.anywhere && self.streams.is_empty() && self.done.is_empty()
    }

    /// Returns the only stream on which the frame is read.
    fn only(&self) -> Option<&Arc<Stream>> {
        match &self.streams[..] {
            [stream] if !self.anywhere && self.done.is_empty() => Some(stream),
            _ => None,
        }
    }
}

impl Released<'_> {
    /// Signals on a release stream that waits for the work before.
    fn signal_on(
        self,
        own: &Mutex<ReleaseStream>,
        wait: impl FnOnce(&ReleaseStream) -> frameshare_cuda::Result<()>,
    ) -> Result<(), FenceError> {
        let own = lock(own);
        wait(&own).map_err(|error| self.failed(error))?;
        self.fence.signal_released(self.entry, self.sequence, &own.stream)
    }

    fn failed(self, error: frameshare_cuda::Error) -> FenceError {
        FenceError { kind: self.fence.kind(), cause: error.into() }
    }
}

impl ReleaseStream {
    fn new(context: &Arc<Context>) -> frameshare_cuda::Result<Self> {
        Ok(Self { read: Event::new(context)?, stream: Stream::new(context)? })
    }

    /// Returns the stream that all connections of a context share.
    fn common(context: &Arc<Context>) -> frameshare_cuda::Result<Arc<Mutex<Self>>> {
        static COMMON: PerProcess<Mutex<Vec<Common>>> = PerProcess::new(Mutex::default);
        let find = |all: &[Common]| {
            all.iter().find(|common| common.context == context.as_raw() as usize)?.stream.upgrade()
        };
        if let Some(stream) = find(&lock(&COMMON)) {
            return Ok(stream);
        }
        // Made without the lock: creating a stream may wait for another thread's call.
        let new = Arc::new(Mutex::new(Self::new(context)?));
        let mut all = lock(&COMMON);
        if let Some(stream) = find(&all) {
            return Ok(stream);
        }
        all.retain(|common| common.stream.strong_count() > 0);
        all.push(Common { context: context.as_raw() as usize, stream: Arc::downgrade(&new) });
        Ok(new)
    }

    /// Makes the stream wait for the work queued so far on the streams that read a frame.
    ///
    /// # Errors
    /// [`Error::Capturing`] if one of them is being captured;
    /// the stream may then wait for some of them.
    fn wait_for(&self, reads: &Reads) -> frameshare_cuda::Result<()> {
        reads.done.iter().try_for_each(|done| self.stream.wait(done))?;
        reads.streams.iter().try_for_each(|other| {
            if other.context().as_raw() == self.stream.context().as_raw() {
                self.read.record_uncaptured(other)?;
                return self.stream.wait(&self.read);
            }
            self.stream.wait_for(other)
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a stream that reads the frame was destroyed.
fn is_of_invalid_stream(error: &FenceError) -> bool {
    matches!(&error.cause, FenceFault::Driver(error) if error.is_invalid_stream())
}

/// Returns whether a release only has to wait: for the end of a stream capture, or of a host
/// callback.
pub(super) fn is_deferrable(error: &FenceError) -> bool {
    match &error.cause {
        FenceFault::Driver(Error::Missing { .. }) => true,
        FenceFault::Driver(error) => error.is_deferrable(),
        FenceFault::Violation { .. } | FenceFault::WentBack { .. } | FenceFault::NoGpu => false,
    }
}
