// SPDX-License-Identifier: MIT OR Apache-2.0

//! Release streams: they signal release fences behind the GPU work that reads the frames.
//!
//! The streams that read frames never touch shared state.

use super::deferred_release::{DeferredReleases, Release};
use crate::fence::{FenceError, FenceFault, ReaderFence};
use frameshare_cuda::{context::Context, event::Event, stream::Stream};
use frameshare_protocol::{EntryIndex, Sequence};
use std::{
    slice,
    sync::{Arc, Mutex, PoisonError},
};

/// The release streams of one connection.
#[derive(Debug)]
pub(super) struct ReleaseStreams {
    context: Arc<Context>,
    prompt: Mutex<ReleaseStream>,
    /// For the deferred-release thread, which may wait while it holds the lock: other threads
    /// release meanwhile.
    late: Mutex<ReleaseStream>,
    deferred: DeferredReleases,
}

/// A stream, and the event that it waits for.
#[derive(Debug)]
struct ReleaseStream {
    /// Recorded behind all work of the context, on every stream.
    read: Event,
    stream: Stream,
}

/// A publication, and the fence to signal for its release.
#[derive(Clone, Copy)]
pub(super) struct Released<'a> {
    pub fence: &'a dyn ReaderFence,
    pub entry: EntryIndex,
    pub sequence: Sequence,
}

impl ReleaseStreams {
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn new(context: &Arc<Context>) -> frameshare_cuda::Result<Self> {
        Ok(Self {
            context: context.clone(),
            prompt: ReleaseStream::new(context)?,
            late: ReleaseStream::new(context)?,
            deferred: DeferredReleases::default(),
        })
    }

    /// The context that frames are read in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Signals behind all work of the context, and the work on the streams `used` of other
    /// contexts. Does not block; [`is_deferrable`] tells an error that passes.
    ///
    /// # Errors
    /// The failure of the fence.
    pub fn signal(&self, released: Released<'_>, used: &[Stream]) -> Result<(), FenceError> {
        // Made current once for all the calls; a failure here repeats below, where it is handled.
        let _current = self.context.push();
        released.signal_on(&self.prompt, |stream| {
            stream.read.record_context()?;
            stream.stream.wait(&stream.read)?;
            stream.wait_for(used)
        })
    }

    /// As [`ReleaseStreams::signal`], but may block.
    ///
    /// # Errors
    /// The failure of the fence.
    pub fn signal_blocking(&self, released: Released<'_>, used: &[Stream]) -> Result<(), FenceError> {
        released.signal_on(&self.late, |stream| {
            stream.read.record_context_blocking(&stream.stream)?;
            stream.stream.wait(&stream.read)?;
            stream.wait_for(used)
        })
    }

    /// Signals behind the work queued on `stream` so far.
    ///
    /// # Errors
    /// The failure of the fence.
    pub fn signal_after(&self, released: Released<'_>, stream: &Stream) -> Result<(), FenceError> {
        if stream.context().as_raw() == self.context.as_raw() {
            return released.fence.signal_released(released.entry, released.sequence, stream);
        }
        // Unmapping waits for the work of the reader's own context only, which therefore has to
        // wait for this stream.
        released.signal_on(&self.prompt, |own| own.wait_for(slice::from_ref(stream)))
    }

    /// Hands a release over to the deferred-release thread.
    pub fn defer(&self, release: Release) {
        self.deferred.push(release);
    }
}

impl Released<'_> {
    /// Signals on a release stream that waits for the work before.
    fn signal_on(
        self,
        stream: &Mutex<ReleaseStream>,
        wait: impl FnOnce(&ReleaseStream) -> frameshare_cuda::Result<()>,
    ) -> Result<(), FenceError> {
        let stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        wait(&stream).map_err(|error| FenceError { kind: self.fence.kind(), cause: error.into() })?;
        self.fence.signal_released(self.entry, self.sequence, &stream.stream)
    }
}

impl ReleaseStream {
    fn new(context: &Arc<Context>) -> frameshare_cuda::Result<Mutex<Self>> {
        Ok(Mutex::new(Self { read: Event::new(context)?, stream: Stream::new(context)? }))
    }

    /// Makes the stream wait for the work queued on other streams so far.
    fn wait_for(&self, others: &[Stream]) -> frameshare_cuda::Result<()> {
        others.iter().try_for_each(|other| {
            let read = Event::new(other.context())?;
            read.record(other)?;
            self.stream.wait(&read)
        })
    }
}

/// Returns whether a release only has to wait: for the end of a stream capture, or of a host
/// callback.
pub(super) fn is_deferrable(error: &FenceError) -> bool {
    match &error.cause {
        FenceFault::Driver(frameshare_cuda::Error::Missing { .. }) => true,
        FenceFault::Driver(error) => error.is_deferrable(),
        FenceFault::Violation { .. } | FenceFault::WentBack { .. } | FenceFault::NoGpu => false,
    }
}
