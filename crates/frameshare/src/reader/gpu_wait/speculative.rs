// SPDX-License-Identifier: MIT OR Apache-2.0

//! Speculative delivery: frames before their ready fences, and their fate when the exporter dies.

use super::{bound::WAITS, pending::PendingFrames, unblock::Orphan, watch};
use crate::{
    fence::{FenceError, FenceFault, ReaderFence},
    gpu,
    reader::{
        config::Config,
        error::{ProtocolViolation, ReadError},
        lease::Channel,
    },
};
use frameshare_cuda::context::Context;
use frameshare_protocol::{EntryIndex, FenceKind, Sequence};
use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

/// The condition that a sleeping reader has to poll, since no notification follows the end of GPU
/// work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::reader) enum Recheck {
    /// None.
    Nothing,
    /// Speculatively delivered frames may be late.
    Deadline,
    /// The next frame is published and may be written.
    ReadyFence,
}

/// The configuration of GPU waits.
#[derive(Clone, Copy, Debug)]
pub(in crate::reader) struct Settings {
    /// The kind of fence that the configuration asks for.
    requested: Option<FenceKind>,
    /// No stream is to wait.
    written_only: bool,
    /// Maximum time for the exporter's GPU work on a frame.
    pub fence_timeout: Duration,
    /// The exporter is in this very process.
    pub is_local: bool,
}

impl Settings {
    pub fn new(config: &Config, is_local: bool) -> Self {
        let Config { fence, written_only, fence_timeout, .. } = *config;
        Self { requested: fence, written_only, fence_timeout, is_local }
    }

    /// Returns whether frames are delivered speculatively: not with event fences, unless they were
    /// requested, since a stream that waits for an event never continues after the exporter's
    /// death.
    fn is_speculative(&self, kind: FenceKind) -> bool {
        !self.written_only && (kind == FenceKind::Timeline || self.requested == Some(kind))
    }
}

/// Speculative delivery of one connection, from the exporter's first use of a GPU.
#[derive(Debug)]
pub(in crate::reader) struct GpuWait {
    pending: Arc<PendingFrames>,
    context: Arc<Context>,
    mode: Mode,
    settings: Settings,
    recheck: Recheck,
    /// The next frame, if it is not delivered yet for the bound of waits alone.
    limited: Option<Sequence>,
    /// Number of frames that were delivered when they were written for that reason.
    limited_frames: u64,
}

/// Delivery of frames that are not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Frames wait for their ready fences.
    WrittenOnly,
    /// Frames are delivered speculatively.
    Speculative,
    /// The exporter is dead: the streams that wait for it are being unblocked.
    Unblocking,
}

impl GpuWait {
    /// Decides on speculative delivery, and watches the exporter if streams may wait for it; `gone`
    /// is readable when the exporter's process has ended.
    pub fn new(
        channel: &Arc<Channel>,
        context: &Arc<Context>,
        fence: Arc<dyn ReaderFence>,
        settings: Settings,
        gone: Option<&OwnedFd>,
    ) -> Self {
        let kind = fence.kind();
        let pending = Arc::new(PendingFrames::new(fence));
        let is_speculative = settings.is_speculative(kind);
        if is_speculative {
            gpu::set_waits(|| WAITS.is_any());
        }
        if is_speculative && kind == FenceKind::Timeline && !settings.is_local {
            watch::watch(channel, &pending, context, gone, settings.fence_timeout);
        }
        let mode = if is_speculative { Mode::Speculative } else { Mode::WrittenOnly };
        Self {
            pending,
            context: context.clone(),
            mode,
            settings,
            recheck: Recheck::Nothing,
            limited: None,
            limited_frames: 0,
        }
    }

    /// Returns whether the next frame is written.
    ///
    /// # Errors
    /// [`ReadError::Fence`], or [`ReadError::Violation`] if the ready value went back.
    pub fn is_written(&mut self, entry: EntryIndex, sequence: Sequence) -> Result<bool, ReadError> {
        // An entry is reused only after its last frame was written and read, so its event stands
        // for the present one. One timeline value stands for all.
        if self.pending.kind() == FenceKind::Event {
            self.pending.forget(entry);
        }
        let is_written = !self.pending.is_pending(entry, sequence).map_err(failed)?;
        if is_written && self.limited.take_if(|limited| *limited == sequence).is_some() {
            self.limited_frames += 1;
        }
        Ok(is_written)
    }

    /// Checks the waiting time of the oldest speculatively delivered frame, or else of frame
    /// `next`. Returns the frame if it is late.
    ///
    /// # Errors
    /// [`ReadError::Fence`], or [`ReadError::Violation`] if the ready value went back.
    pub fn find_late(&mut self, next: Option<Sequence>) -> Result<Option<Sequence>, ReadError> {
        let unwritten = self.pending.oldest(next).map_err(failed)?;
        self.recheck = if unwritten.is_some() { Recheck::Deadline } else { Recheck::Nothing };
        let is_late = |waited| waited > self.settings.fence_timeout;
        Ok(unwritten.and_then(|(oldest, waited)| is_late(waited).then_some(oldest)))
    }

    /// Returns whether to deliver the next frame, which is not written: not if enough streams of
    /// the process wait, or memory is to be freed. A frame that is not written when the exporter
    /// dies never will be.
    pub fn deliver_unwritten(&mut self, entry: EntryIndex, sequence: Sequence, is_connected: bool) -> bool {
        let is_speculative = self.mode == Mode::Speculative && is_connected && !self.pending.is_given_up();
        let delivers = is_speculative && WAITS.begin(self.pending.fence(), entry, sequence);
        self.limited = (is_speculative && !delivers).then_some(sequence);
        if delivers {
            self.pending.push(entry, sequence);
        } else {
            self.recheck = Recheck::ReadyFence;
        }
        delivers
    }

    /// The condition to poll before a wake-up comes.
    pub fn recheck(&self) -> Recheck {
        self.recheck
    }

    /// Number of frames that were delivered when they were written since enough streams waited.
    pub fn limited_frames(&self) -> u64 {
        self.limited_frames
    }

    /// Number of frames that were delivered before a ready fence that was never signaled.
    pub fn torn(&self) -> u64 {
        self.pending.count()
    }

    /// Unblocks the streams that wait for frames that will not be written. With `is_closed` the
    /// exporter has sent a close message, and first finishes its work.
    pub fn unblock(&mut self, gone: Option<OwnedFd>, is_closed: bool) {
        self.mode = Mode::Unblocking;
        Orphan::new(self.pending.clone(), self.context.clone(), gone.map(Arc::new)).unblock(is_closed);
    }

    /// Returns whether streams wait for values that this process may store, and does not yet. An
    /// exporter in this process finishes its work, with or without a close message.
    pub fn needs_unblocking(&self) -> bool {
        self.pending.kind() == FenceKind::Timeline && !self.settings.is_local && self.mode != Mode::Unblocking
    }
}

fn failed(error: FenceError) -> ReadError {
    match error.cause {
        FenceFault::WentBack { .. } => ProtocolViolation::Fence(error).into(),
        _ => ReadError::Fence(error),
    }
}
