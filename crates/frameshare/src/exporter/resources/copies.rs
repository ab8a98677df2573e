// SPDX-License-Identifier: MIT OR Apache-2.0

//! Copies of GPU frames in host memory.

use super::copier::{Copier, Copy, Outcome};
use crate::{exporter::slot::Slot, gpu::DropWhenIdle};
use frameshare_core::exporter::system as core;
use frameshare_cuda::{Error, Status, context::Context, event::Event, stream::Stream};
use frameshare_protocol::Descriptor;
use std::sync::Arc;

/// Makes the downloads of one exporter.
#[derive(Debug)]
pub struct Copies {
    gpu: Arc<Context>,
    stream: Stream,
    /// Events of finished downloads, for reuse.
    spare: Vec<Event>,
    /// Makes the copies that the GPU does not make by itself, from the first one on.
    copier: Option<Copier>,
}

/// The sign of the end of a download.
#[derive(Debug)]
pub enum Done {
    /// Recorded behind the copy, which the GPU makes by itself.
    Event(Event),
    /// A thread makes the copy.
    Copier(Outcome),
}

impl Copies {
    /// Makes downloads from a GPU.
    ///
    /// # Errors
    /// The driver's error.
    pub fn new(gpu: &Arc<Context>) -> frameshare_cuda::Result<Self> {
        Ok(Self { gpu: gpu.clone(), stream: Stream::new(gpu)?, spare: Vec::new(), copier: None })
    }

    /// Queues a copy on the stream of downloads, and returns an event behind it.
    fn queue(&mut self, copy: &Copy) -> frameshare_cuda::Result<Event> {
        let done = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(&self.gpu)?,
        };
        self.stream.wait(&copy.written)?;
        copy.queue_on(&self.stream)?;
        done.record(&self.stream).inspect_err(|_| {
            // The copy is under way, and its end unknown.
            drop(DropWhenIdle::new(&self.gpu, (copy.from.clone(), copy.to.clone())));
        })?;
        Ok(done)
    }
}

impl core::Copier for Copies {
    type Slot = Slot;
    type Written = Arc<Event>;
    type Done = Done;
    type Error = Error;

    /// A thread makes the copy if the target is not registered with the GPU, or a call of the
    /// driver fails.
    fn start(
        &mut self,
        written: Arc<Event>,
        from: &Slot,
        to: &Slot,
        frame: &Descriptor,
    ) -> Result<Done, String> {
        let size = usize::try_from(frame.size).map_err(|error| error.to_string())?;
        let copy = Copy { written, from: from.clone(), offset: frame.offset, size, to: to.clone() };
        let queued = if to.is_registered() { self.queue(&copy).ok() } else { None };
        if let Some(event) = queued {
            return Ok(Done::Event(event));
        }
        let copier = match &self.copier {
            Some(copier) => copier,
            None => self.copier.insert(Copier::start(&self.gpu).map_err(|error| error.to_string())?),
        };
        Ok(Done::Copier(copier.copy(copy)))
    }

    fn ended(&self, done: &Done) -> Result<Option<Result<(), String>>, Error> {
        match done {
            Done::Event(event) => Ok((event.query()? == Status::Ready).then_some(Ok(()))),
            Done::Copier(outcome) => {
                let failed = |error: Error| error.to_string();
                Ok(outcome.get().map(|copied| copied.clone().map_err(failed)))
            }
        }
    }

    fn recycle(&mut self, done: Done) {
        if let Done::Event(event) = done {
            self.spare.push(event);
        }
    }
}
