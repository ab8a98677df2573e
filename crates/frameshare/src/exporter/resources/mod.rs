// SPDX-License-Identifier: MIT OR Apache-2.0

//! The system and the GPU of an exporter. Each object owns its fields, and decides nothing.

mod account;
mod attachment;
mod connection;
mod copier;
mod copies;
pub mod in_flight;
mod link_fence;
mod liveness;
mod metadata_pages;
mod signals;

pub use account::ReaderAccount;
pub use attachment::{Attachment, is_exhausted, is_shortage};
pub use connection::Connection;
pub use link_fence::LinkFence;
pub use liveness::Liveness;
pub use metadata_pages::{LargeAreas, Metadata};
pub use signals::{Gpu, Recorded};

use super::{
    config::Config,
    slot::{AcquireError, AdoptedId, Slot, SlotAllocator},
};
use crate::{
    Interrupt,
    fence::{ExporterFence, Signals},
    memory::{Accounts, Allocation, MemoryError, host::HostFile, same_process},
    sys::{Fences, Label, PendingFences, Sleepers, Words, monotonic_ns},
    video::{VideoFormat, period_ns},
};
use attachment::{payload_file, unsendable};
use copies::Copies;
use frameshare_core::exporter::{
    shortage::Unsendable,
    slot::NoSlot,
    system::{System, Video, Waiter},
};
use frameshare_cuda::{context::Context, event::Event, stream::Stream};
use frameshare_protocol::{AreaIndex, MemoryKind, Plane, SlotId};
use std::{io, os::fd::AsFd, sync::Arc, time::Instant};

/// Owns what one exporter has of the system and of the GPU, besides its readers' connections and
/// its slots.
#[derive(Debug)]
pub struct Resources {
    /// Tells the slots of one exporter from those of another.
    exporter: u64,
    /// Tells this run of the stream from other runs of the same name.
    session: u64,
    config: Config,
    gpu: Option<Gpu>,
    /// Names the stream's memory files.
    label: Label,
    /// The accounts of users that are not trusted with memory.
    accounts: Accounts,
    metadata: Metadata,
    /// Events of work that is done, for reuse.
    spare: Vec<Event>,
}

impl Resources {
    /// The resources of the exporter with this number.
    ///
    /// # Errors
    /// The error of a system call.
    pub fn new(exporter: u64, config: Config, label: Label) -> io::Result<Self> {
        Ok(Self {
            exporter,
            session: monotonic_ns(),
            gpu: config.gpu.clone().map(Gpu),
            accounts: Accounts::new(config.max_retired_bytes),
            metadata: Metadata::new(config.max_slots, &label)?,
            config,
            label,
            spare: Vec::new(),
        })
    }

    pub fn session(&self) -> u64 {
        self.session
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn config_mut(&mut self) -> &mut Config {
        &mut self.config
    }

    pub fn label(&self) -> &Label {
        &self.label
    }

    /// The context that frames are written in, if there is one.
    pub fn context(&self) -> Option<&Arc<Context>> {
        self.gpu.as_ref().map(|gpu| &gpu.0)
    }

    /// Uses a GPU from now on.
    pub fn use_gpu(&mut self, gpu: &Arc<Context>) {
        self.config.gpu = Some(gpu.clone());
        self.gpu = Some(Gpu(gpu.clone()));
    }

    /// The accounts of users that are not trusted with memory.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    pub fn metadata_mut(&mut self) -> &mut Metadata {
        &mut self.metadata
    }

    /// Records the work queued so far on `stream`, which may be of another context than the
    /// exporter's, `context`.
    ///
    /// # Errors
    /// As [`Event::record_uncaptured`].
    pub fn record(&mut self, stream: &Stream, context: &Arc<Context>) -> frameshare_cuda::Result<Recorded> {
        let event = self.event(context)?;
        event.record_uncaptured(stream)?;
        Ok(Recorded(event))
    }

    /// Records all work of the exporter's context so far.
    ///
    /// # Errors
    /// As [`Event::record_context`].
    pub fn record_context(&mut self, context: &Arc<Context>) -> frameshare_cuda::Result<Recorded> {
        let event = self.event(context)?;
        event.record_context()?;
        Ok(Recorded(event))
    }

    fn event(&mut self, context: &Arc<Context>) -> frameshare_cuda::Result<Event> {
        self.spare.pop().map_or_else(|| Event::new(context), Ok)
    }
}

impl System for Resources {
    type Slot = Slot;
    type Memory = Arc<dyn Allocation>;
    type Allocator = SlotAllocator;
    type AdoptedId = AdoptedId;
    type MemoryError = MemoryError;
    type Attachment = Attachment;
    type Connection = Connection;
    type Sleepers = Sleepers;
    type Page = Words;
    type File = HostFile;
    type Account = ReaderAccount;
    type Waiter = Interrupt;
    type Gpu = Gpu;
    type GpuError = frameshare_cuda::Error;
    type Signals = Signals;
    type Fence = Box<dyn ExporterFence>;
    type Copier = Copies;
    type Work = Recorded;
    type DeviceWork = PendingFences;
    type Video = VideoFormat;

    #[inline]
    fn now() -> Instant {
        Instant::now()
    }

    #[inline]
    fn now_ns() -> u64 {
        monotonic_ns()
    }

    #[inline]
    fn gpu(&self) -> Option<&Gpu> {
        self.gpu.as_ref()
    }

    fn allocator(&self, kind: MemoryKind) -> Result<SlotAllocator, MemoryError> {
        SlotAllocator::new(kind, self.context(), &self.label, &self.accounts)
    }

    fn slot(&self, id: SlotId, is_overflow: bool, memory: Arc<dyn Allocation>) -> Slot {
        Slot::new(self.exporter, id, is_overflow, memory)
    }

    fn share_within_process(&self, slot: &Slot) {
        same_process::note((self.session, slot.0.id), &slot.0.memory, self.context());
    }

    fn kept_bytes(&self) -> u64 {
        self.accounts.kept()
    }

    fn is_mps_client(&self) -> bool {
        self.context().is_some_and(|gpu| gpu.device().is_mps_client())
    }

    fn payload(&self, bytes: &[u8], is_charged: bool) -> Result<Attachment, Unsendable> {
        let accounts = is_charged.then_some(&self.accounts);
        payload_file(bytes, accounts).map(Attachment::Payload).map_err(|error| unsendable(&error))
    }

    fn store_metadata(&mut self, area: AreaIndex, metadata: &[u8]) -> Option<u32> {
        self.metadata.store(area, metadata)
    }

    fn load_metadata(&self, area: AreaIndex, length: u32) -> Vec<u8> {
        self.metadata.load(area, length)
    }

    fn large_areas(&self) -> Option<(Attachment, u32)> {
        self.metadata.large_areas().map(|(file, count)| (Attachment::File(file.clone()), count))
    }

    fn copier(&self) -> Result<Option<Copies>, frameshare_cuda::Error> {
        self.context().map(Copies::new).transpose()
    }

    fn recycle(&mut self, work: Recorded) {
        self.spare.push(work.0);
    }

    fn device_work(&self, slot: &Slot) -> Option<PendingFences> {
        // A failure of poll(2) is a lack of memory: nothing can be waited for.
        slot.0.memory.dma_buf().and_then(|dma_buf| dma_buf.pending(Fences::All).ok().flatten())
    }

    fn is_settled(&self, slot: &Slot, work: &mut PendingFences) -> bool {
        let signaled = slot.0.memory.dma_buf().map(|dma_buf| work.are_signaled(dma_buf.as_fd()));
        !matches!(signaled, Some(Ok(false)))
    }

    fn is_written_by_device(&self, slot: &Slot) -> bool {
        let settled = slot.0.memory.dma_buf().map(|dma_buf| dma_buf.is_settled(Fences::Writers));
        matches!(settled, Some(Ok(false)))
    }
}

impl Waiter for Interrupt {
    fn wake(&self) {
        self.set();
    }

    fn clear(&self) {
        Self::clear(self);
    }
}

impl Video for VideoFormat {
    fn of_caps(caps: &str) -> Option<Self> {
        Self::of_caps(caps).ok()
    }

    fn period_ns(caps: &str) -> Option<u64> {
        period_ns(caps)
    }

    fn overlapping_plane(&self, planes: &[Plane]) -> Option<usize> {
        self.overlapping_plane(planes)
    }
}

impl From<NoSlot<Resources>> for AcquireError {
    fn from(why: NoSlot<Resources>) -> Self {
        match why {
            NoSlot::Exhausted { max_slots } => Self::Exhausted { max_slots },
            NoSlot::Memory(error) => Self::Memory(error),
            NoSlot::Closed => Self::Closed,
            NoSlot::Size(size) => Self::Size(size),
        }
    }
}
