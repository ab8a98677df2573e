// SPDX-License-Identifier: MIT OR Apache-2.0

//! Downloads: copies of GPU frames in host memory for readers that must not or cannot import the
//! GPU memory of a stream. Each frame is downloaded once for all of them, and published to them
//! when the copy is done.

use super::copier::{Copier, Copy, Outcome};
use crate::{
    exporter::{
        error::SetupError,
        link::{WaitingFrame, Weight},
        slot::Slot,
    },
    gpu::DropWhenIdle,
};
use frameshare_cuda::{Status, context::Context, event::Event, stream::Stream};
use frameshare_protocol::{AreaIndex, Descriptor, Sequence};
use std::{collections::VecDeque, sync::Arc};

/// The downloads of one exporter.
#[derive(Debug)]
pub struct Downloads {
    gpu: Arc<Context>,
    stream: Stream,
    waiting: VecDeque<Download>,
    /// Events of finished downloads, for reuse.
    spare: Vec<Event>,
    /// Makes the copies that the GPU does not make by itself, from the first one on.
    copier: Option<Copier>,
}

/// The sign of the end of a download.
#[derive(Debug)]
enum Done {
    /// Recorded behind the copy, which the GPU makes by itself.
    Event(Event),
    /// A thread makes the copy.
    Copier(Outcome),
}

/// A download under way.
#[derive(Debug)]
pub struct Download {
    done: Done,
    /// The destination.
    pub slot: Slot,
    /// The source publication: one lease on its area is the download's.
    pub frame: WaitingFrame,
    /// It is the last frame of the stream, for readers that joined later.
    pub is_last: bool,
}

impl Downloads {
    pub fn new(gpu: &Arc<Context>) -> frameshare_cuda::Result<Self> {
        Ok(Self {
            gpu: gpu.clone(),
            stream: Stream::new(gpu)?,
            waiting: VecDeque::new(),
            spare: Vec::new(),
            copier: None,
        })
    }

    /// Number of downloads under way.
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// The sequence number of the first of them.
    pub fn first(&self) -> Option<Sequence> {
        self.waiting.front().map(|download| download.frame.descriptor.sequence)
    }

    /// The sequence number of the last of them.
    pub fn newest(&self) -> Option<Sequence> {
        self.waiting.back().map(|download| download.frame.descriptor.sequence)
    }

    /// The weight of the first of them in the slot that it goes to.
    pub fn first_weight(&self) -> Option<Weight> {
        self.waiting.front().map(|download| download.frame.weight())
    }

    /// Starts a download behind the GPU work that writes the frame. A thread makes the copy if the
    /// target is not registered with the GPU, or a call of the driver fails.
    ///
    /// # Errors
    /// That of the system, if it grants no thread.
    pub fn start(
        &mut self,
        written: Arc<Event>,
        from: &Slot,
        to: Slot,
        frame: WaitingFrame,
        is_last: bool,
    ) -> Result<(), SetupError> {
        let size = usize::try_from(frame.descriptor.size)?;
        let copy =
            Copy { written, from: from.clone(), offset: frame.descriptor.offset, size, to: to.clone() };
        let queued = if to.is_registered() { self.queue(&copy).ok() } else { None };
        let done = match (queued, &self.copier) {
            (Some(event), _) => Done::Event(event),
            (None, Some(copier)) => Done::Copier(copier.copy(copy)),
            (None, None) => Done::Copier(self.copier.insert(Copier::start(&self.gpu)?).copy(copy)),
        };
        let descriptor = Descriptor { slot: to.0.id, offset: 0, ..frame.descriptor };
        let frame = WaitingFrame { descriptor, bytes: to.size(), ..frame };
        self.waiting.push_back(Download { done, slot: to, frame, is_last });
        Ok(())
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

    /// Returns the next download that has ended, in order, and whether it failed.
    ///
    /// # Errors
    /// That of the context, which has failed.
    pub fn next(&mut self) -> frameshare_cuda::Result<Option<(Download, frameshare_cuda::Result<()>)>> {
        let Some(first) = self.waiting.front() else { return Ok(None) };
        let copied = match &first.done {
            Done::Event(event) if event.query()? == Status::Ready => Ok(()),
            Done::Event(_) => return Ok(None),
            Done::Copier(outcome) => match outcome.get() {
                Some(copied) => copied.clone(),
                None => return Ok(None),
            },
        };
        Ok(self.waiting.pop_front().map(|download| (download, copied)))
    }

    /// Drops all downloads under way, after a failure. Returns the areas of their source
    /// publications.
    pub fn give_up(&mut self) -> Vec<AreaIndex> {
        self.waiting.drain(..).map(|download| download.frame.area).collect()
    }

    /// Keeps the event of a delivered download for reuse.
    pub fn recycle(&mut self, download: Download) {
        if let Done::Event(event) = download.done {
            self.spare.push(event);
        }
    }
}
