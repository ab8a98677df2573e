// SPDX-License-Identifier: MIT OR Apache-2.0

//! Downloads: copies of GPU frames in host memory for readers that must not or cannot import the
//! GPU memory of a stream. Each frame is downloaded once for all of them, and published to them
//! when the copy is done.

use crate::exporter::{
    link::{WaitingFrame, Weight},
    system::{Copier, Signals, Slot, System},
};
use frameshare_protocol::{AreaIndex, Descriptor, Sequence};
use std::collections::VecDeque;

type Done<S> = <<S as System>::Copier as Copier>::Done;
/// A download that has ended, and the reason, for people, if it failed.
type Ended<S> = (Download<S>, Result<(), String>);

/// Owns the downloads under way, in the order of their frames, and what makes them.
pub struct Downloads<S: System> {
    copier: S::Copier,
    waiting: VecDeque<Download<S>>,
}

/// A download under way.
pub struct Download<S: System> {
    done: Done<S>,
    /// The destination.
    pub slot: S::Slot,
    /// The source publication: one lease on its area is the download's.
    pub frame: WaitingFrame<S::Attachment>,
    /// It is the last frame of the stream, for readers that joined later.
    pub is_last: bool,
}

impl<S: System> Downloads<S> {
    /// No downloads yet; this makes them.
    pub fn new(copier: S::Copier) -> Self {
        Self { copier, waiting: VecDeque::new() }
    }

    /// Number of downloads under way.
    pub fn count(&self) -> usize {
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
    ///
    /// # Errors
    /// The reason, for people.
    pub fn start(
        &mut self,
        written: <S::Signals as Signals>::Present,
        from: &S::Slot,
        to: S::Slot,
        frame: WaitingFrame<S::Attachment>,
        is_last: bool,
    ) -> Result<(), String> {
        let done = self.copier.start(written, from, &to, &frame.descriptor)?;
        let descriptor = Descriptor { slot: to.id(), offset: 0, ..frame.descriptor };
        let frame = WaitingFrame { descriptor, bytes: to.size(), ..frame };
        self.waiting.push_back(Download { done, slot: to, frame, is_last });
        Ok(())
    }

    /// Takes the next download if it has ended.
    ///
    /// # Errors
    /// That of the GPU, which has failed.
    pub fn take_ended(&mut self) -> Result<Option<Ended<S>>, S::GpuError> {
        let Some(first) = self.waiting.front() else { return Ok(None) };
        let Some(copied) = self.copier.ended(&first.done)? else { return Ok(None) };
        Ok(self.waiting.pop_front().map(|download| (download, copied)))
    }

    /// Drops all downloads under way, after a failure. Returns the areas of their source
    /// publications.
    pub fn give_up(&mut self) -> Vec<AreaIndex> {
        self.waiting.drain(..).map(|download| download.frame.area).collect()
    }

    /// Takes back what showed the end of a delivered download.
    pub fn recycle(&mut self, download: Download<S>) {
        self.copier.recycle(download.done);
    }
}
