// SPDX-License-Identifier: MIT OR Apache-2.0

//! The fence of one reader, and what is sent to the reader to open it.

use crate::{
    exporter::error::SetupError,
    fence::{
        ExporterFence, FenceError, FenceFault, FenceState, Signals,
        event::ExporterEvents,
        none::NoFence,
        timeline::{Timeline, TimelinePage},
    },
    sys::Label,
};
use frameshare_core::{
    exporter::{ending::Ending, system as core},
    selected::Selected,
};
use frameshare_cuda::context::Context;
use frameshare_protocol::{EntryIndex, FenceKind, Sequence, message::Reason};
use std::{os::fd::OwnedFd, sync::Arc};

/// A fence, and the resources that its reader needs.
pub struct LinkFence {
    pub fence: Box<dyn ExporterFence>,
    /// The handles of events.
    pub events: Vec<u8>,
    pub timeline_fd: Option<OwnedFd>,
}

impl LinkFence {
    /// Makes a fence for a reader with this number of queue entries. Takes driver calls.
    pub fn new(
        choice: &Selected<FenceKind>,
        gpu: Option<&Arc<Context>>,
        entries: usize,
        local: bool,
        label: &Label,
    ) -> Result<Self, SetupError> {
        let (mut events, mut timeline_fd) = (Vec::new(), None);
        let fence: Box<dyn ExporterFence> = match (choice.kind, gpu) {
            (FenceKind::Timeline, Some(gpu)) => {
                let (page, fd) = TimelinePage::create(entries, label)?;
                timeline_fd = Some(fd);
                Box::new(Timeline::new(gpu, page)?)
            }
            (FenceKind::Event, Some(gpu)) => {
                let new = if local { ExporterEvents::new_local } else { ExporterEvents::new };
                let fence = new(gpu, entries)?;
                events = fence.handles()?;
                Box::new(fence)
            }
            _ => Box::new(NoFence),
        };
        Ok(Self { fence, events, timeline_fd })
    }
}

impl core::Fence for Box<dyn ExporterFence> {
    type Signals = Signals;

    fn kind(&self) -> FenceKind {
        (**self).kind()
    }

    fn signal_ready(
        &mut self,
        entry: EntryIndex,
        sequence: Sequence,
        signals: &mut Signals,
    ) -> Result<(), Ending> {
        (**self).signal_ready(entry, sequence, signals).map_err(failed)
    }

    fn is_released(&mut self, entry: EntryIndex, sequence: Sequence) -> Result<bool, Ending> {
        self.poll_released(entry, sequence).map(|state| state == FenceState::Ready).map_err(failed)
    }
}

/// The end of a reader whose fence has failed.
fn failed(error: FenceError) -> Ending {
    let reason = match error.cause {
        FenceFault::Violation { .. } => Reason::Violation,
        FenceFault::Driver(_) | FenceFault::WentBack { .. } | FenceFault::NoGpu => Reason::Failed,
    };
    Ending::new(reason, error.to_string())
}
