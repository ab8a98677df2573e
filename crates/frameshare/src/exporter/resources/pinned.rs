// SPDX-License-Identifier: MIT OR Apache-2.0

//! Resources pinned until GPU work completes, such as the sources of copies.

use frameshare_cuda::{Status, context::Context, event::Event, stream::Stream};
use std::{any::Any, sync::Arc};

/// Resources pinned until a recorded CUDA event completes.
#[derive(Default)]
pub struct Pinned {
    waiting: Vec<(Event, Box<dyn Any + Send>)>,
    /// Completed events, for reuse.
    spare: Vec<Event>,
}

impl std::fmt::Debug for Pinned {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pinned").field("waiting", &self.waiting.len()).finish_non_exhaustive()
    }
}

impl Pinned {
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Records the work queued so far on `stream`, which may be of another context than the
    /// exporter's, `context`.
    ///
    /// # Errors
    /// As [`Event::record_uncaptured`].
    pub fn record(&mut self, stream: &Stream, context: &Arc<Context>) -> frameshare_cuda::Result<Event> {
        let event = self.event(context)?;
        event.record_uncaptured(stream)?;
        Ok(event)
    }

    /// Records all work of the exporter's context so far.
    ///
    /// # Errors
    /// As [`Event::record_context`].
    pub fn record_context(&mut self, context: &Arc<Context>) -> frameshare_cuda::Result<Event> {
        let event = self.event(context)?;
        event.record_context()?;
        Ok(event)
    }

    fn event(&mut self, context: &Arc<Context>) -> frameshare_cuda::Result<Event> {
        self.spare.pop().map_or_else(|| Event::new(context), Ok)
    }

    /// Pins a resource until the recorded work is done.
    pub fn hold(&mut self, until: Event, what: Box<dyn Any + Send>) {
        self.waiting.push((until, what));
    }

    /// Takes out the resources that no work uses any more. Failed work uses nothing.
    pub fn collect(&mut self) -> Vec<Box<dyn Any + Send>> {
        let is_done = |(event, _): &mut (Event, _)| !matches!(event.query(), Ok(Status::Pending));
        let done = self.waiting.extract_if(.., is_done).map(|(event, what)| {
            self.spare.push(event);
            what
        });
        done.collect()
    }
}
