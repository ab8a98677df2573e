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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exporter::fake::{Copier, Fake, memory, slot};

    /// A frame of 200 bytes in slot 9, at an offset.
    fn frame(sequence: u64) -> WaitingFrame<crate::exporter::fake::Attachment> {
        let source = slot(9, memory(200)).id();
        let descriptor =
            Descriptor { sequence: Sequence(sequence), slot: source, offset: 50, ..Descriptor::default() };
        WaitingFrame { area: AreaIndex(sequence as u32), descriptor, oversized: None, bytes: 200 }
    }

    /// Downloads of frames 1 and 2 to slots 1 and 2 of 100 bytes.
    fn downloads() -> Downloads<Fake> {
        let mut downloads = Downloads::new(Copier::default());
        for sequence in [1, 2] {
            let to = slot(sequence as u32, memory(100));
            downloads.start((), &slot(9, memory(200)), to, frame(sequence), false).unwrap();
        }
        downloads
    }

    #[test]
    fn downloads_end_in_the_order_of_their_frames() {
        let mut downloads = downloads();
        assert_eq!((downloads.first(), downloads.newest()), (Some(Sequence(1)), Some(Sequence(2))));
        downloads.copier.ended.insert(1, Err("failed".into()));
        assert!(downloads.take_ended().unwrap().is_none(), "the first one is under way");
        downloads.copier.ended.insert(0, Ok(()));
        for (sequence, outcome, left) in [(1, Ok(()), 1), (2, Err("failed".into()), 0)] {
            let (download, copied) = downloads.take_ended().unwrap().unwrap();
            assert_eq!((download.frame.descriptor.sequence, copied), (Sequence(sequence), outcome));
            assert_eq!(downloads.count(), left);
            downloads.recycle(download);
        }
        assert_eq!(downloads.copier.recycled, [0, 1]);
        assert!(downloads.take_ended().unwrap().is_none() && downloads.first_weight().is_none());
    }

    #[test]
    fn downloaded_frame_is_at_the_beginning_of_its_slot() {
        let mut downloads = downloads();
        assert_eq!(downloads.first_weight(), Some(Weight { bytes: 100, files: 0 }));
        downloads.copier.ended.insert(0, Ok(()));
        let (Download { slot, frame, .. }, _) = downloads.take_ended().unwrap().unwrap();
        assert_eq!((frame.descriptor.slot, frame.descriptor.offset), (slot.id(), 0));
        assert_eq!((slot.id().index, frame.area), (1, AreaIndex(1)));
    }

    #[test]
    fn failed_gpu_ends_all_downloads() {
        let mut downloads = downloads();
        downloads.copier.has_failed = true;
        assert!(downloads.take_ended().is_err());
        let (from, to) = (slot(9, memory(200)), slot(3, memory(100)));
        assert!(downloads.start((), &from, to, frame(3), false).is_err());
        assert_eq!(downloads.give_up(), [AreaIndex(1), AreaIndex(2)]);
        assert_eq!(downloads.count(), 0);
    }
}
