//! No fence: what the CPU wrote before it published is there, and what it read before it released is read.

use super::{ExporterFence, FenceError, FenceState, ReaderFence};
use frameshare_protocol::FenceKind;

/// The fence of host memory. The queue's own atomics order everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFence;

impl ExporterFence for NoFence {
    fn kind(&self) -> FenceKind {
        FenceKind::None
    }

    fn signal_ready(&mut self, _entry: usize, _sequence: u64) -> Result<(), FenceError> {
        Ok(())
    }

    fn poll_released(&mut self, _entry: usize, _sequence: u64) -> Result<FenceState, FenceError> {
        Ok(FenceState::Ready)
    }
}

impl ReaderFence for NoFence {
    fn kind(&self) -> FenceKind {
        FenceKind::None
    }

    fn poll_ready(&self, _entry: usize, _sequence: u64) -> Result<FenceState, FenceError> {
        Ok(FenceState::Ready)
    }

    fn signal_released(&self, _entry: usize, _sequence: u64) -> Result<(), FenceError> {
        Ok(())
    }
}
