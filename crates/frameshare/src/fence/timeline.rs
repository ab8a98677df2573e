//! Timeline fences: 64-bit words in a page that the two share and that GPU streams write and wait for.
//!
//! Works between isolated containers, takes one driver call a frame for all readers together, and survives a crash: the
//! survivor's CPU stores what the dead should have.

use super::{ExporterFence, FenceError, FenceFault, FenceState, ReaderFence, Signals, failed};
use crate::{idle, sys::Words};
use frameshare_cuda::{
    context::Context,
    fence::timeline::{Page, Word},
    host::Access,
    stream::Stream,
};
use frameshare_protocol::{
    FenceKind,
    page::{release_at, timeline},
};
use std::sync::Arc;

/// Both sides look at the same page.
#[derive(Debug)]
pub struct Timeline {
    gpu: Arc<Context>,
    page: Arc<Page>,
}

impl Timeline {
    /// Registers the page with a context. Takes some hundred µs.
    pub(crate) fn new(gpu: &Arc<Context>, words: Words) -> frameshare_cuda::Result<Self> {
        let page = Page::new(gpu, Arc::new(words), Access::ReadWrite)?;
        Ok(Self { gpu: gpu.clone(), page: Arc::new(page) })
    }

    fn word(&self, index: usize) -> Result<Word<'_>, FenceError> {
        let none = frameshare_cuda::Error::Refused("an entry that the timeline page has no word for");
        self.page.word(index).ok_or_else(|| failed(FenceKind::Timeline)(none))
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        idle::drop_when_idle(&self.gpu, self.page.clone());
    }
}

impl ExporterFence for Timeline {
    fn kind(&self) -> FenceKind {
        FenceKind::Timeline
    }

    fn signal_ready(
        &mut self,
        _entry: usize,
        sequence: u64,
        signals: &mut Signals,
    ) -> Result<(), FenceError> {
        signals.add_word(&self.page, timeline::READY, sequence)
    }

    fn poll_released(&mut self, entry: usize, sequence: u64) -> Result<FenceState, FenceError> {
        // The word goes from one leased sequence number to the next: anything above is a lie.
        match self.word(release_at(entry))?.load() {
            found if found == sequence => Ok(FenceState::Ready),
            found if found < sequence => Ok(FenceState::Pending),
            found => {
                let cause = FenceFault::Violation { entry, sequence, found };
                Err(FenceError { kind: FenceKind::Timeline, cause })
            }
        }
    }
}

impl ReaderFence for Timeline {
    fn kind(&self) -> FenceKind {
        FenceKind::Timeline
    }

    fn poll_ready(&self, _entry: usize, sequence: u64) -> Result<FenceState, FenceError> {
        let reached = self.word(timeline::READY)?.reached(sequence);
        Ok(if reached { FenceState::Ready } else { FenceState::Pending })
    }

    fn wait_ready(&self, _entry: usize, sequence: u64, stream: &Stream) -> Result<(), FenceError> {
        let word = self.word(timeline::READY)?;
        // A word that is there already needs no work on the GPU.
        if word.reached(sequence) {
            Ok(())
        } else {
            stream.wait_word(word, sequence).map_err(failed(FenceKind::Timeline))
        }
    }

    fn signal_released(&self, entry: usize, sequence: u64, stream: &Stream) -> Result<(), FenceError> {
        stream.write_word(self.word(release_at(entry))?, sequence).map_err(failed(FenceKind::Timeline))
    }

    fn rescue(&self, sequence: u64) {
        if let Some(word) = self.page.word(timeline::READY).filter(|word| !word.reached(sequence)) {
            // The page is registered for writing, so this cannot be refused.
            let _ = word.store(sequence);
        }
    }
}
