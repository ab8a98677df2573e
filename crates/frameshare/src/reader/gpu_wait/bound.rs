// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bound of the GPU streams of this process that wait for exporters.
//!
//! A stream that waits takes a hardware channel of the process until it continues. When streams
//! that wait have all channels, of which a process has 8 unless `CUDA_DEVICE_MAX_CONNECTIONS` says
//! otherwise, no other stream of the process continues (measured on an H200, driver 580). So frames
//! are delivered speculatively only while few streams of all readers of the process wait.
//!
//! A frame that is delivered before it is written counts until it is written: as the streams that
//! wait for it, or as one stream while none waits yet. A stream counts once, whatever it waits for.
//! A reader's next frame is expected on a stream that waits for an earlier one.
//!
//! Nor does a stream begin to wait when memory is to be freed, which waits for streams that wait.

use crate::{fence::ReaderFence, gpu, sys::PerProcess};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::{EntryIndex, Sequence};
use std::{
    ptr::addr_eq,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

/// Maximum number of streams that wait before a further frame is delivered when it is written only.
///
/// Of 8 channels one is left for other streams. Behind each stream that waits for a frame a second
/// one may wait: the release stream of a reader, or the signal stream of an exporter whose frame it
/// writes. One more waits for all of them: that of releases behind the whole context.
const MAX_WAITS: usize = 3;

/// The waits of all readers of this process.
pub(in crate::reader) static WAITS: PerProcess<Waits> = PerProcess::new(Waits::default);

/// Frames that were delivered before they were written.
#[derive(Debug, Default)]
pub(in crate::reader) struct Waits(Mutex<Vec<Wait>>);

/// A frame, and the streams that wait for it.
#[derive(Debug)]
struct Wait {
    fence: Weak<dyn ReaderFence>,
    entry: EntryIndex,
    sequence: Sequence,
    streams: Vec<StreamId>,
}

/// A stream of a context: the handles of the default streams are those of every context.
type StreamId = (usize, usize);

impl Wait {
    fn is_of(&self, fence: &Arc<dyn ReaderFence>) -> bool {
        addr_eq(self.fence.as_ptr(), Arc::as_ptr(fence))
    }
}

impl Waits {
    fn lock(&self) -> MutexGuard<'_, Vec<Wait>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a frame that is about to be delivered before it is written. Returns false if enough
    /// streams wait already, or memory is to be freed. Ends the waits for frames that are written;
    /// with timeline fences without a call of the driver.
    pub fn begin(&self, fence: &Arc<dyn ReaderFence>, entry: EntryIndex, sequence: Sequence) -> bool {
        // Dropped after the lock, since the end of a fence may call the driver.
        let mut fences = Vec::new();
        let mut waits = self.lock();
        waits.retain(|wait| {
            let Some(of) = wait.fence.upgrade() else { return false };
            // An entry has one frame at a time.
            let is_former = wait.is_of(fence) && wait.entry == entry;
            let is_held_back = !is_former && of.is_held_back(wait.entry, wait.sequence);
            fences.push(of);
            is_held_back
        });
        let mut streams: Vec<_> = waits.iter().flat_map(|wait| &wait.streams).collect();
        streams.sort_unstable();
        streams.dedup();
        let without = waits.iter().filter(|wait| wait.streams.is_empty()).count();
        let is_expected = waits.iter().any(|wait| wait.is_of(fence) && !wait.streams.is_empty());
        let is_bounded = streams.len() + without + usize::from(!is_expected) <= MAX_WAITS;
        let is_allowed = is_bounded && gpu::may_wait();
        if is_allowed {
            waits.push(Wait { fence: Arc::downgrade(fence), entry, sequence, streams: Vec::new() });
        }
        is_allowed
    }

    /// Returns whether a frame that was delivered is not written.
    pub fn is_any(&self) -> bool {
        // Dropped after the lock, as above.
        let mut fences = Vec::new();
        let waits = self.lock();
        waits.iter().any(|wait| {
            let Some(fence) = wait.fence.upgrade() else { return false };
            let is_held_back = fence.is_held_back(wait.entry, wait.sequence);
            fences.push(fence);
            is_held_back
        })
    }

    /// Records that a stream waits for a frame. Frames that were delivered when they were written
    /// are not counted.
    pub fn add(&self, fence: &Arc<dyn ReaderFence>, entry: EntryIndex, sequence: Sequence, stream: StreamId) {
        let mut waits = self.lock();
        let wait = waits
            .iter_mut()
            .find(|wait| wait.is_of(fence) && (wait.entry, wait.sequence) == (entry, sequence));
        if let Some(wait) = wait.filter(|wait| !wait.streams.contains(&stream)) {
            wait.streams.push(stream);
        }
    }
}

/// Returns the identity of a stream.
pub(in crate::reader) fn id(stream: &Stream) -> StreamId {
    (stream.context().as_raw() as usize, stream.as_raw() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::probe::Probe;
    use frameshare_protocol::FenceKind;

    /// A reader whose frames are not written.
    struct Unwritten(Arc<Probe<()>>, Arc<dyn ReaderFence>);

    impl Unwritten {
        fn new() -> Self {
            let probe = Arc::new(Probe::new(FenceKind::Timeline, ()));
            probe.hold_back(true);
            Self(probe.clone(), probe)
        }

        /// Delivers a frame, which a stream waits for, if it is allowed.
        fn deliver(&self, waits: &Waits, number: usize, stream: Option<usize>) -> bool {
            let (entry, sequence) = (EntryIndex(number), Sequence(number as u64 + 1));
            let is_delivered = waits.begin(&self.1, entry, sequence);
            stream.iter().for_each(|stream| waits.add(&self.1, entry, sequence, (0, *stream)));
            is_delivered
        }
    }

    #[test]
    fn readers_beyond_the_bound_get_written_frames() {
        let waits = Waits::default();
        let mut readers: Vec<_> = (0..16).map(|_| Unwritten::new()).collect();
        let deliver = |readers: &[Unwritten], number: usize| readers[number].deliver(&waits, 0, Some(number));
        let delivered: Vec<_> = (0..16).filter(|number| deliver(&readers, *number)).collect();
        assert_eq!(delivered, (0..MAX_WAITS).collect::<Vec<_>>());
        // A wait ends when its frame is written, and when the fence is dropped, behind all streams.
        readers[0].0.hold_back(false);
        assert!(deliver(&readers, 7) && !deliver(&readers, 8));
        readers.remove(1);
        assert!(deliver(&readers, 9) && !deliver(&readers, 10));
    }

    #[test]
    fn stream_that_waits_for_many_readers_counts_once() {
        let waits = Waits::default();
        let readers: Vec<_> = (0..16).map(|_| Unwritten::new()).collect();
        assert!(readers.iter().all(|reader| reader.deliver(&waits, 0, Some(7))));
        // So do the next frames of a reader, and further waits for a frame.
        assert!((1..16).all(|number| readers[0].deliver(&waits, number, Some(7))));
        // Negative control: with a stream for each frame the bound is reached.
        let each = |number: usize| readers[number].deliver(&waits, 20, Some(100 + number));
        assert!((0..16).filter(|number| each(*number)).count() < 16);
    }

    #[test]
    fn frames_that_no_stream_waits_for_count_each() {
        let (waits, reader) = (Waits::default(), Unwritten::new());
        let delivered = (0..16).filter(|number| reader.deliver(&waits, *number, None)).count();
        assert_eq!(delivered, MAX_WAITS);
    }

    #[test]
    fn streams_of_one_reader_are_bounded() {
        let (waits, reader) = (Waits::default(), Unwritten::new());
        let delivered = (0..16).filter(|number| reader.deliver(&waits, *number, Some(*number))).count();
        // The next frame is expected on a stream that waits already.
        assert_eq!(delivered, MAX_WAITS + 1);
    }

    /// Negative control of the counting: waits that have ended do not count.
    #[test]
    fn frames_that_are_written_are_not_counted() {
        let (waits, reader) = (Waits::default(), Unwritten::new());
        reader.0.hold_back(false);
        assert!((0..16).all(|number| reader.deliver(&waits, number, Some(number))));
    }
}
