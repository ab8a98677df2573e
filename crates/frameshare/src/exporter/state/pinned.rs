// SPDX-License-Identifier: MIT OR Apache-2.0

//! Resources pinned until GPU work completes, such as the sources of copies.

use frameshare_cuda::{Status, event::Event, stream::Stream};
use std::any::Any;

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

    /// Pins a resource until the work queued on `stream` so far is done.
    ///
    /// # Errors
    /// Any error that the driver returns, also if the stream is being captured: the record would
    /// become a part of the graph. The resource is dropped then.
    pub fn add(&mut self, stream: &Stream, what: Box<dyn Any + Send>) -> frameshare_cuda::Result<()> {
        let context = stream.context();
        let same = |event: &Event| event.context().as_raw() == context.as_raw();
        let event = match self.spare.iter().position(same) {
            Some(index) => self.spare.swap_remove(index),
            None => Event::new(context)?,
        };
        stream.check_uncaptured()?;
        event.record(stream)?;
        self.waiting.push((event, what));
        Ok(())
    }

    /// Moves resources that no work uses any more to `done`. Failed work uses nothing.
    pub fn collect(&mut self, done: &mut Vec<Box<dyn Any + Send>>) {
        let is_done = |(event, _): &mut (Event, _)| !matches!(event.query(), Ok(Status::Pending));
        for (event, what) in self.waiting.extract_if(.., is_done) {
            self.spare.push(event);
            done.push(what);
        }
    }
}
