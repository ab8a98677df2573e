// SPDX-License-Identifier: MIT OR Apache-2.0

//! The exporter's GPU as a connection uses it, from the `Welcome` on or from a later message.

use super::setup::{SelectedFence, check_reach};
use crate::{
    reader::{
        config::Config,
        error::{ConnectError, ProtocolViolation, ReadError},
        gpu_wait::{GpuWait, Recheck, Settings},
        lease::Channel,
    },
    sys::UntrustedFd,
};
use frameshare_core::reader::{End, Ending};
use frameshare_cuda::{context::Context, device::Uuid};
use frameshare_protocol::{
    EntryIndex, FenceKind, Sequence,
    message::{EVENT_HANDLE, Welcome},
};
use std::{os::fd::OwnedFd, sync::Arc, time::Duration};

/// The GPU of one connection.
#[derive(Debug)]
pub(super) struct Gpu {
    channel: Arc<Channel>,
    /// The context of the configuration.
    offered: Option<Arc<Context>>,
    /// The GPU that the exporter has frames on, whether or not this reader gets them there.
    exporter_gpu: Option<Uuid>,
    /// Number of queue entries.
    entries: usize,
    settings: Settings,
    /// `None` until the exporter uses a GPU for this reader.
    wait: Option<GpuWait>,
}

impl Gpu {
    /// A connection without a GPU so far.
    pub fn new(channel: Arc<Channel>, config: &Config, welcome: &Welcome, is_local: bool) -> Self {
        let settings = Settings::new(config, is_local);
        Self {
            channel,
            offered: config.gpu.clone(),
            exporter_gpu: welcome.gpu.map(Uuid),
            entries: welcome.credit as usize,
            settings,
            wait: None,
        }
    }

    /// Opens the fence that the `Welcome` selects, if any; `gone` is readable when the exporter's
    /// process has ended.
    ///
    /// # Errors
    /// [`ConnectError::Violation`] for a fence that was not offered; otherwise the error of the
    /// GPU.
    pub fn join(
        &mut self,
        welcome: &Welcome,
        page: Option<UntrustedFd>,
        gone: Option<&OwnedFd>,
    ) -> Result<(), ConnectError> {
        match (welcome.fence, self.offered.clone()) {
            (FenceKind::None, _) if page.is_none() => Ok(()),
            (FenceKind::None, _) | (_, None) => Err(ProtocolViolation::FenceNotOffered.into()),
            (kind, Some(context)) => self.open(&context, kind, &welcome.events, page, gone),
        }
    }

    /// Handles an exporter that begins to use a GPU, with this kind of fence.
    ///
    /// # Errors
    /// [`ReadError::Violation`] if this reader offered no GPU, or uses it already;
    /// [`ReadError::Gpu`] if it cannot use the GPU.
    pub fn begin(
        &mut self,
        gpu: Uuid,
        kind: FenceKind,
        events: &[u8],
        page: Option<UntrustedFd>,
        gone: Option<&OwnedFd>,
    ) -> Result<(), ReadError> {
        self.exporter_gpu = Some(gpu);
        let has_all_events = kind != FenceKind::Event
            || self.settings.is_local
            || events.len() == 2 * self.entries * EVENT_HANDLE;
        let context = self.offered.clone().filter(|_| self.wait.is_none() && has_all_events);
        let context = context.ok_or(ProtocolViolation::GpuNotOffered)?;
        self.open(&context, kind, events, page, gone).map_err(|error| match error {
            ConnectError::Violation(violation) => ReadError::Violation(violation),
            error => ReadError::Gpu(error),
        })
    }

    fn open(
        &mut self,
        context: &Arc<Context>,
        kind: FenceKind,
        events: &[u8],
        page: Option<UntrustedFd>,
        gone: Option<&OwnedFd>,
    ) -> Result<(), ConnectError> {
        if let Some(gpu) = self.exporter_gpu {
            check_reach(context, gpu)?;
        }
        let (entries, is_local) = (self.entries, self.settings.is_local);
        let fence = SelectedFence { kind, page, events, entries, is_local }.open(context)?;
        self.channel.use_gpu(context, fence.clone())?;
        self.wait = Some(GpuWait::new(&self.channel, context, fence, self.settings, gone));
        Ok(())
    }

    /// Returns whether the exporter uses a GPU for this reader.
    pub fn is_used(&self) -> bool {
        self.wait.is_some()
    }

    /// The GPU that the exporter has frames on, whether or not this reader gets them there.
    pub fn exporter_gpu(&self) -> Option<Uuid> {
        self.exporter_gpu
    }

    /// Speculative delivery; `None` until the exporter uses a GPU for this reader.
    pub fn wait(&mut self) -> Option<&mut GpuWait> {
        self.wait.as_mut()
    }

    /// Returns whether a fenced frame is written, or may be delivered speculatively. Ends the
    /// connection if that takes too long.
    ///
    /// # Errors
    /// As [`Gpu::check_deadline`].
    pub fn may_deliver(
        &mut self,
        entry: EntryIndex,
        sequence: Sequence,
        ending: &mut Ending,
    ) -> Result<bool, ReadError> {
        // Without a fence the frame is a violation, which is found when the frame is made.
        let Some(wait) = &mut self.wait else { return Ok(true) };
        let is_written = wait.is_written(entry, sequence)?;
        self.check_deadline((!is_written).then_some(sequence), ending)?;
        let is_connected = ending.is_connected();
        let is_allowed = |wait: &mut GpuWait| wait.deliver_unwritten(entry, sequence, is_connected);
        Ok(is_written || self.wait.as_mut().is_some_and(is_allowed))
    }

    /// Ends the connection if a speculatively delivered frame, or frame `next`, is late.
    ///
    /// # Errors
    /// As [`GpuWait::find_late`].
    pub fn check_deadline(&mut self, next: Option<Sequence>, ending: &mut Ending) -> Result<(), ReadError> {
        let late = self.wait.as_mut().map(|wait| wait.find_late(next)).transpose()?;
        if let Some(sequence) = late.flatten() {
            ending.end(End::Stalled { sequence, limit: self.fence_timeout() });
        }
        Ok(())
    }

    /// See [`GpuWait::limited_frames`].
    pub fn limited_frames(&self) -> u64 {
        self.wait.as_ref().map_or(0, GpuWait::limited_frames)
    }

    /// The condition to poll while the reader sleeps.
    pub fn recheck(&self) -> Recheck {
        self.wait.as_ref().map_or(Recheck::Nothing, GpuWait::recheck)
    }

    /// Maximum time for the exporter's GPU work on a frame.
    pub fn fence_timeout(&self) -> Duration {
        self.settings.fence_timeout
    }
}
