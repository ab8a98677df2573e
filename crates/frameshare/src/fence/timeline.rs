// SPDX-License-Identifier: MIT OR Apache-2.0

//! Timeline fences: 64-bit values in a shared page that GPU streams of both sides write and wait
//! for.
//!
//! They work between isolated containers, take one driver call a frame for all readers together,
//! and survive a crash: the survivor's CPU stores the values that the dead process would have
//! written.

use super::{ExporterFence, FenceError, FenceFault, FenceState, ReaderFence, Signals, Unblocking, failed};
use crate::{
    gpu,
    sys::{Label, Mapping, SealedAgainst, Words, check_memfd, memfd},
};
use frameshare_cuda::{
    context::Context,
    event::Event,
    fence::timeline::{Page, Word},
    host::Access,
    stream::Stream,
};
use frameshare_protocol::{
    EntryIndex, FenceKind, Sequence,
    page::{release_at, timeline, timeline_size},
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
};

/// The highest sequence number: two bits of a claim word are its state.
const MAX_SEQUENCE: u64 = u64::MAX >> 2;

/// The memory file of a timeline page, mapped by one side.
#[derive(Debug)]
pub struct TimelinePage(Words);

impl TimelinePage {
    /// Creates the page of a reader with this number of queue entries, and returns it with the
    /// descriptor for the reader.
    ///
    /// # Errors
    /// The error of the system call.
    pub fn create(entries: usize, label: &Label) -> io::Result<(Self, OwnedFd)> {
        let size = timeline_size(entries);
        let fd = memfd(&label.file("timeline"), size as u64)?;
        let mapping = Mapping::writable(&fd, size)?;
        SealedAgainst::ResizingSoFar.seal(&fd)?;
        Ok((Self(mapping.into()), fd))
    }

    /// Maps an exporter's page and seals it for both sides: a GPU keeps the pages that it mapped,
    /// so after a hole was punched into the file it would wait for other memory than any CPU can
    /// store to.
    ///
    /// # Errors
    /// The error of the system call, or [`io::ErrorKind::InvalidData`] for a file without the
    /// agreed size and seals.
    pub fn map(fd: impl AsFd, entries: usize) -> io::Result<Self> {
        let size = timeline_size(entries);
        check_memfd(&fd, size as u64, SealedAgainst::Resizing)?;
        let mapping = Mapping::writable(&fd, size)?;
        SealedAgainst::ResizingAndWriting.seal(&fd)?;
        // Holes that were punched before are found now.
        check_memfd(&fd, size as u64, SealedAgainst::ResizingAndWriting)?;
        Ok(Self(mapping.into()))
    }
}

/// The page, registered with a context, which both sides have. The exporter needs nothing else.
#[derive(Debug)]
pub struct Timeline {
    page: Arc<Page>,
    gpu: Arc<Context>,
    /// The exporter's signal stream, once it writes values.
    signals: Option<Arc<Stream>>,
}

/// The reader's side. The exporter may write any value as its newest frame's, at any time.
#[derive(Debug)]
pub struct ReaderTimeline {
    page: Timeline,
    /// The newest frame that was ever reported as written: it never goes back.
    written: AtomicU64,
    /// The newest frame that a stream was made to wait for.
    awaited: AtomicU64,
    /// Threads that are making a stream wait.
    waiting: AtomicU32,
    /// Streams are being unblocked: the reader owns the ready value.
    is_unblocking: AtomicBool,
    /// An invalid ready value, and the value before it; kept once found.
    broken: OnceLock<(u64, u64)>,
}

impl Timeline {
    /// Registers the page with a context. Takes some hundred µs.
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn new(gpu: &Arc<Context>, page: TimelinePage) -> frameshare_cuda::Result<Self> {
        let page = Arc::new(Page::new(gpu, Arc::new(page.0), Access::ReadWrite)?);
        Ok(Self { page, gpu: gpu.clone(), signals: None })
    }

    fn word(&self, index: usize) -> Result<Word<'_>, FenceError> {
        let none = frameshare_cuda::Error::Refused("an entry that the timeline page has no word for");
        self.page.word(index).ok_or_else(|| failed(FenceKind::Timeline)(none))
    }
}

impl ExporterFence for Timeline {
    fn kind(&self) -> FenceKind {
        FenceKind::Timeline
    }

    fn signal_ready(
        &mut self,
        _entry: EntryIndex,
        sequence: Sequence,
        signals: &mut Signals,
    ) -> Result<(), FenceError> {
        if self.signals.is_none() {
            self.signals = signals.stream().cloned();
        }
        signals.add_word(&self.page, timeline::READY, sequence.0)
    }

    fn poll_released(&mut self, entry: EntryIndex, sequence: Sequence) -> Result<FenceState, FenceError> {
        // The value goes from one leased sequence number to the next: a higher one is invalid.
        match self.word(release_at(entry))?.load() {
            found if found == sequence.0 => Ok(FenceState::Ready),
            found if found < sequence.0 => Ok(FenceState::Pending),
            found => {
                let cause = FenceFault::Violation { entry, sequence, found };
                Err(FenceError { kind: FenceKind::Timeline, cause })
            }
        }
    }
}

impl Drop for Timeline {
    /// Unregisters the page behind the work that uses it: values that the exporter's signal stream
    /// writes. A reader's streams have passed before its fence is dropped.
    fn drop(&mut self) {
        let behind = |stream: &Arc<Stream>| Some(vec![Event::behind(stream, stream.context()).ok()?]);
        let done = self.signals.as_ref().map_or(Some(Vec::new()), behind);
        gpu::drop_behind(&self.gpu, done, self.page.clone());
    }
}

impl ReaderTimeline {
    /// As [`Timeline::new`].
    ///
    /// # Errors
    /// Any error that the driver returns.
    pub fn new(gpu: &Arc<Context>, page: TimelinePage) -> frameshare_cuda::Result<Self> {
        Ok(Self {
            page: Timeline::new(gpu, page)?,
            written: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            is_unblocking: AtomicBool::new(false),
            broken: OnceLock::new(),
        })
    }

    /// The newest frame that has been written.
    fn written(&self) -> Result<u64, FenceError> {
        // Loaded in this order: the value never goes back, and unblocking stores it only after
        // setting its flag.
        let before = self.written.load(Ordering::SeqCst);
        let found = self.page.word(timeline::READY)?.load();
        let is_ours = self.is_unblocking.load(Ordering::SeqCst);
        // A stream takes a number that is more than half of all numbers ahead for one behind.
        if !is_ours && (found < before || found > MAX_SEQUENCE) {
            self.broken.get_or_init(|| (found, before));
        }
        if let Some(&(found, before)) = self.broken.get() {
            let cause = FenceFault::WentBack { found, before };
            return Err(FenceError { kind: FenceKind::Timeline, cause });
        }
        if !is_ours {
            self.written.fetch_max(found, Ordering::SeqCst);
        }
        Ok(self.written.load(Ordering::SeqCst))
    }
}

impl ReaderFence for ReaderTimeline {
    fn kind(&self) -> FenceKind {
        FenceKind::Timeline
    }

    fn poll_ready(&self, _entry: EntryIndex, sequence: Sequence) -> Result<FenceState, FenceError> {
        Ok(if self.written()? >= sequence.0 { FenceState::Ready } else { FenceState::Pending })
    }

    fn is_held_back(&self, _entry: EntryIndex, sequence: Sequence) -> bool {
        let is_below = |word: Word<'_>| word.load() < sequence.0;
        !self.is_unblocking.load(Ordering::SeqCst) && self.page.word(timeline::READY).is_ok_and(is_below)
    }

    fn wait_ready(&self, entry: EntryIndex, sequence: Sequence, stream: &Stream) -> Result<(), FenceError> {
        // A written frame needs no work on the GPU.
        if self.poll_ready(entry, sequence)? == FenceState::Ready {
            return Ok(());
        }
        let word = self.page.word(timeline::READY)?;
        // Either this thread sees the flag of unblocking, or unblocking sees this thread's wait.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.awaited.fetch_max(sequence.0, Ordering::SeqCst);
        let waits = if self.is_unblocking.load(Ordering::SeqCst) {
            Ok(())
        } else {
            stream.wait_word(word, sequence.0)
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        waits.map_err(failed(FenceKind::Timeline))
    }

    fn signal_released(
        &self,
        entry: EntryIndex,
        sequence: Sequence,
        stream: &Stream,
    ) -> Result<(), FenceError> {
        let word = self.page.word(release_at(entry))?;
        stream.write_word(word, sequence.0).map_err(failed(FenceKind::Timeline))
    }

    fn check(&self) -> Result<(), FenceError> {
        self.written().map(|_| ())
    }

    fn unblock(&self) -> Unblocking {
        // Checks the progress for the last time.
        let _ = self.written();
        let again = self.is_unblocking.swap(true, Ordering::SeqCst);
        let awaited = self.awaited.load(Ordering::SeqCst);
        let mut is_contested = false;
        if let Some(word) = self.page.page.word(timeline::READY).filter(|_| awaited > 0) {
            is_contested = again && word.load() != awaited;
            // The page is registered for writing, so this cannot be refused.
            let _ = word.store(awaited);
        }
        Unblocking { is_complete: self.waiting.load(Ordering::SeqCst) == 0, is_contested }
    }
}
