// SPDX-License-Identifier: MIT OR Apache-2.0

//! No fence: CPU writes precede the publication, and CPU reads precede the release.

use super::{ExporterFence, FenceError, FenceFault, FenceState, ReaderFence, Signals, Unblocking};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::{EntryIndex, FenceKind, Sequence};

/// The fence of host memory. The queue's own atomics order everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFence;

impl ExporterFence for NoFence {
    fn kind(&self) -> FenceKind {
        FenceKind::None
    }

    fn signal_ready(&mut self, _: EntryIndex, _: Sequence, _: &mut Signals) -> Result<(), FenceError> {
        Ok(())
    }

    fn poll_released(&mut self, _: EntryIndex, _: Sequence) -> Result<FenceState, FenceError> {
        Ok(FenceState::Ready)
    }
}

impl ReaderFence for NoFence {
    fn kind(&self) -> FenceKind {
        FenceKind::None
    }

    fn poll_ready(&self, _: EntryIndex, _: Sequence) -> Result<FenceState, FenceError> {
        Ok(FenceState::Ready)
    }

    fn is_held_back(&self, _: EntryIndex, _: Sequence) -> bool {
        false
    }

    fn wait_ready(&self, _: EntryIndex, _: Sequence, _: &Stream) -> Result<(), FenceError> {
        Ok(())
    }

    fn signal_released(&self, _: EntryIndex, _: Sequence, _: &Stream) -> Result<(), FenceError> {
        // An application that copies host frames to a GPU itself also waits for the copy before it
        // drops them.
        Err(FenceError { kind: FenceKind::None, cause: FenceFault::NoGpu })
    }

    fn check(&self) -> Result<(), FenceError> {
        Ok(())
    }

    fn unblock(&self) -> Unblocking {
        Unblocking::NONE
    }
}
