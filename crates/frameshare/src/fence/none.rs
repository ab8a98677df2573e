//! No fence: what the CPU wrote before it published is there, and what it read before it released is read.

use super::{ExporterFence, FenceError, FenceFault, FenceState, ReaderFence, Rescue, Signals};
use frameshare_cuda::stream::Stream;
use frameshare_protocol::FenceKind;

/// The fence of host memory. The queue's own atomics order everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoFence;

impl ExporterFence for NoFence {
    fn kind(&self) -> FenceKind {
        FenceKind::None
    }

    fn signal_ready(&mut self, _: usize, _: u64, _: &mut Signals) -> Result<(), FenceError> {
        Ok(())
    }

    fn poll_released(&mut self, _: usize, _: u64) -> Result<FenceState, FenceError> {
        Ok(FenceState::Ready)
    }
}

impl ReaderFence for NoFence {
    fn kind(&self) -> FenceKind {
        FenceKind::None
    }

    fn poll_ready(&self, _: usize, _: u64) -> Result<FenceState, FenceError> {
        Ok(FenceState::Ready)
    }

    fn wait_ready(&self, _: usize, _: u64, _: &Stream) -> Result<(), FenceError> {
        Ok(())
    }

    fn signal_released(&self, _: usize, _: u64, _: &Stream) -> Result<(), FenceError> {
        // Who copies host frames to a GPU by itself also waits by itself before it lets them go.
        Err(FenceError { kind: FenceKind::None, cause: FenceFault::NoGpu })
    }

    fn check(&self) -> Result<(), FenceError> {
        Ok(())
    }

    fn rescue(&self) -> Rescue {
        Rescue::NONE
    }
}
