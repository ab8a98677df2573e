// SPDX-License-Identifier: MIT OR Apache-2.0

//! Setup of a connection: the shared pages of a `Welcome`, and the fence. Each is checked first.

use crate::{
    fence::{
        ReaderFence,
        event::ReaderEvents,
        timeline::{ReaderTimeline, TimelinePage},
    },
    reader::error::{ConnectError, ProtocolViolation},
    sys::{Mapping, ProcessLock, SealedAgainst, UntrustedFd, Wake, WakeWord, Words, check_memfd},
};
use frameshare_cuda::{
    context::Context,
    device::{Device, Uuid},
};
use frameshare_protocol::{
    FenceKind,
    message::Welcome,
    page::{claims_size, metadata_size, queue_size},
};
use frameshare_queue::Consumer;
use std::{io, sync::Arc};

/// The shared objects of a `Welcome`.
#[derive(Debug)]
pub(super) struct Shared {
    pub consumer: Consumer<Words>,
    /// Shows the exporter that this process lives.
    pub life: ProcessLock,
    pub metadata: Words,
    pub wake: Wake,
    /// The futex to sleep on, if the exporter offers one.
    pub word: Option<WakeWord>,
    /// The timeline page, not yet checked.
    pub timeline: Option<UntrustedFd>,
}

impl Shared {
    /// Maps the pages.
    ///
    /// # Errors
    /// The violation if a descriptor is missing, or a page has not the agreed size, seals or
    /// version.
    pub fn open(welcome: &Welcome, fds: Vec<UntrustedFd>) -> Result<Self, ProtocolViolation> {
        let mut fds = fds;
        let open = |word| {
            let page = fds.pop().ok_or(ProtocolViolation::DescriptorCount)?;
            WakeWord::open(&page, word).map_err(ProtocolViolation::Page)
        };
        let word = welcome.wake_word.map(open).transpose()?;
        let mut fds = fds.into_iter();
        let (Some(queue), Some(claims), Some(metadata), Some(wake)) =
            (fds.next(), fds.next(), fds.next(), fds.next())
        else {
            return Err(ProtocolViolation::DescriptorCount);
        };
        let entries = welcome.credit as usize;
        let queue = map(&queue, queue_size(entries), false)?;
        let claims_page = map(&claims, claims_size(entries), true)?;
        // This process never closes another descriptor of the page: that would end the lock.
        let life = ProcessLock::new(claims);
        let metadata = map(&metadata, metadata_size(welcome.areas), false)?;
        let consumer = Consumer::new(queue, claims_page, entries).ok_or(ProtocolViolation::QueueVersion)?;
        let wake = Wake::from_peer(wake).map_err(ProtocolViolation::WakeSocket)?;
        Ok(Self { consumer, life, metadata, wake, word, timeline: fds.next() })
    }
}

/// Maps a shared page after checking its size and seals.
pub(super) fn map(fd: &UntrustedFd, size: usize, is_writable: bool) -> Result<Words, ProtocolViolation> {
    let against = if is_writable { SealedAgainst::Resizing } else { SealedAgainst::ResizingAndWriting };
    let open = || -> io::Result<Words> {
        check_memfd(fd, size as u64, against)?;
        let mapping = if is_writable { Mapping::writable(fd, size) } else { Mapping::read_only(fd, size) };
        mapping.map(Words::from)
    };
    open().map_err(ProtocolViolation::Page)
}

/// The fence that an exporter selected.
#[derive(Debug)]
pub(super) struct SelectedFence<'a> {
    pub kind: FenceKind,
    /// The timeline page.
    pub page: Option<UntrustedFd>,
    /// The handles of its events.
    pub events: &'a [u8],
    /// Number of queue entries.
    pub entries: usize,
    /// The exporter is in this very process.
    pub is_local: bool,
}

impl SelectedFence<'_> {
    /// Opens the fence.
    ///
    /// # Errors
    /// [`ConnectError::Violation`] if it is not one that this reader offered; otherwise the error
    /// of the driver.
    pub fn open(self, context: &Arc<Context>) -> Result<Arc<dyn ReaderFence>, ConnectError> {
        Ok(match (self.kind, self.page) {
            (FenceKind::Timeline, Some(page)) => {
                let page = TimelinePage::map(&page, self.entries).map_err(ProtocolViolation::Page)?;
                Arc::new(ReaderTimeline::new(context, page)?)
            }
            (FenceKind::Event, None) if self.is_local => {
                let events = ReaderEvents::find(context, self.events);
                Arc::new(events.ok_or(ConnectError::EventsOfOtherContext)?)
            }
            (FenceKind::Event, None) => {
                let events = ReaderEvents::open(context, self.events);
                Arc::new(events.map_err(ConnectError::of_events)?)
            }
            _ => return Err(ProtocolViolation::FenceNotOffered.into()),
        })
    }
}

/// Checks that a context can read memory of the exporter's GPU.
///
/// # Errors
/// [`ConnectError::GpuNotVisible`], [`ConnectError::GpuOutOfReach`], or the error of the driver.
pub(super) fn check_reach(context: &Context, gpu: Uuid) -> Result<(), ConnectError> {
    if context.device().uuid() == gpu {
        return Ok(());
    }
    let device = Device::with_uuid(gpu)?.ok_or(ConnectError::GpuNotVisible { gpu })?;
    if context.device().can_access(&device)? {
        Ok(())
    } else {
        let (exporter, reader) = (Box::new(device), Box::new(context.device().clone()));
        Err(ConnectError::GpuOutOfReach { gpu, exporter, reader })
    }
}
