// SPDX-License-Identifier: MIT OR Apache-2.0

//! Downloads: copies of GPU frames in host memory for readers that must not or cannot import the
//! GPU memory of a stream. Each frame is downloaded once for all of them, and published to them
//! when the copy is done.
//!
//! # Safety
//!
//! Asynchronous copies are started here, into slots that are held, from slots that are leased,
//! until they are done.
#![allow(unsafe_code)]

use crate::{
    exporter::{
        link::{WaitingFrame, Weight},
        slot::Slot,
    },
    fence::Signals,
    memory::Address,
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
}

/// A download under way.
#[derive(Debug)]
pub struct Download {
    done: Event,
    /// The destination.
    pub slot: Slot,
    /// The source publication: one lease on its area is the download's.
    pub frame: WaitingFrame,
    /// It is the last frame of the stream, for readers that joined later.
    pub is_last: bool,
}

impl Downloads {
    pub fn new(gpu: &Arc<Context>) -> frameshare_cuda::Result<Self> {
        Ok(Self { gpu: gpu.clone(), stream: Stream::new(gpu)?, waiting: VecDeque::new(), spare: Vec::new() })
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

    /// Starts a download behind the GPU work that writes the frame.
    pub fn start(
        &mut self,
        signals: &Signals,
        from: &Slot,
        to: Slot,
        frame: WaitingFrame,
        is_last: bool,
    ) -> frameshare_cuda::Result<()> {
        let (Address::Device(source), Some(target)) = (from.address(), to.as_ptr()) else { return Ok(()) };
        let size = usize::try_from(frame.descriptor.size).unwrap_or(usize::MAX);
        let done = match self.spare.pop() {
            Some(event) => event,
            None => Event::new(&self.gpu)?,
        };
        signals.order(&self.stream)?;
        // SAFETY: the frame lies inside its slot and fits into the other; both are held until
        // `done` completes.
        unsafe { self.stream.download(target.as_ptr(), source + frame.descriptor.offset, size) }?;
        done.record(&self.stream)?;
        let descriptor = Descriptor { slot: to.0.id, offset: 0, ..frame.descriptor };
        let frame = WaitingFrame { descriptor, bytes: to.size(), ..frame };
        self.waiting.push_back(Download { done, slot: to, frame, is_last });
        Ok(())
    }

    /// Returns the next finished download, in order.
    pub fn next(&mut self) -> frameshare_cuda::Result<Option<Download>> {
        match self.waiting.front().map(|download| download.done.query()).transpose()? {
            Some(Status::Ready) => Ok(self.waiting.pop_front()),
            Some(Status::Pending) | None => Ok(None),
        }
    }

    /// Drops all downloads under way, after a failure. Returns the areas of their source
    /// publications.
    pub fn give_up(&mut self) -> Vec<AreaIndex> {
        self.waiting.drain(..).map(|download| download.frame.area).collect()
    }

    /// Keeps the event of a delivered download for reuse.
    pub fn recycle(&mut self, download: Download) {
        self.spare.push(download.done);
    }
}
