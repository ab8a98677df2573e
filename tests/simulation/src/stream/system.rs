// SPDX-License-Identifier: MIT OR Apache-2.0

//! The system of a simulated exporter.

use super::{
    channel::{Channel, File, Interrupt, WakeWord},
    files::{Account, Allocation, Files, HostFile},
    gpu::{Copier, Fences, Gpu, Signals, Work},
    memory::Memory,
    outcome::Outcome,
    words::SharedPage,
};
use crate::{
    Process,
    task::{chance, is_dying, now, step},
};
use frameshare_core::exporter::{
    frees_imports_first,
    shortage::Unsendable,
    system::{self, Sent, System},
};
use frameshare_protocol::{AreaIndex, MemoryKind, Plane, SlotId};
use frameshare_queue::Sleeper;
use std::{
    cell::{OnceCell, RefCell},
    sync::Arc,
    time::Instant,
};

thread_local! {
    /// The instant that stands for the start of a run.
    static START: OnceCell<Instant> = const { OnceCell::new() };
}

/// The present time, as core has it.
pub fn instant() -> Instant {
    let start = START.with(|start| *start.get_or_init(Instant::now));
    start + (now() - crate::time::Time::ZERO)
}

/// Returns the virtual time of an instant.
pub fn time_of(instant: Instant) -> crate::time::Time {
    let start = START.with(|start| *start.get_or_init(Instant::now));
    crate::time::Time::ZERO + instant.saturating_duration_since(start)
}

/// The shares of calls that the system refuses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shortages {
    /// An allocation fails once in so many times; never if 0.
    pub memory: u32,
    /// A message cannot be sent for lack of descriptors once in so many times; never if 0.
    pub descriptors: u32,
    /// A payload cannot be written once in so many times; never if 0.
    pub payloads: u32,
    /// A download fails once in so many times; never if 0.
    pub downloads: u32,
    /// The GPU fails in one of so many calls, and in all calls after that; never if 0.
    pub gpu: u32,
}

/// The system of one exporter.
#[derive(Debug)]
pub struct Simulated {
    /// Its process.
    pub process: Process,
    /// The kind of memory of its frames.
    pub kind: MemoryKind,
    /// The GPU that it has for memory of the kinds of a GPU.
    pub gpu: Gpu,
    /// The calls that the system refuses.
    pub shortages: Shortages,
    /// Its memory.
    pub files: Files,
    /// Metadata by area.
    pub metadata: Vec<Vec<u8>>,
    /// Work of devices on dma-bufs, if there is any.
    pub device: Option<Work>,
    /// Slots that readers of this process use in place.
    pub local: RefCell<Vec<SlotId>>,
    /// Number of pieces of GPU work whose end was found.
    pub recycled: u32,
}

/// A slot, from the view of a holder.
#[derive(Clone, Debug)]
pub struct Slot(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: SlotId,
    allocation: Allocation,
}

impl Drop for Inner {
    fn drop(&mut self) {
        let memory = &self.allocation.memory;
        let must_wait = frees_imports_first(memory.kind()) && memory.is_imported();
        if let Some(file) = &self.allocation.file {
            file.end_slot();
        }
        assert!(is_dying() || !must_wait, "memory is freed before its imports");
    }
}

impl Slot {
    /// Its memory.
    pub fn memory(&self) -> &Memory {
        &self.0.allocation.memory
    }
}

impl system::Slot for Slot {
    type Attachment = File;
    type File = HostFile;

    fn id(&self) -> SlotId {
        self.0.id
    }

    fn size(&self) -> u64 {
        self.0.allocation.size
    }

    fn is_in_host(&self) -> bool {
        !self.memory().kind().is_gpu()
    }

    fn is_dma_buf(&self) -> bool {
        self.memory().kind() == MemoryKind::DmaBuf
    }

    fn file(&self) -> Option<&Arc<HostFile>> {
        self.0.allocation.file.as_ref()
    }

    fn is_registered(&self) -> bool {
        true
    }

    fn is_free(&mut self) -> bool {
        Arc::get_mut(&mut self.0).is_some()
    }

    fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    fn handle(&self) -> (Vec<u8>, Option<File>) {
        (vec![1], Some(File::Slot(self.memory().clone())))
    }
}

/// The source of a generation's memory.
#[derive(Clone, Debug)]
pub struct Allocator(MemoryKind);

impl Allocator {
    /// The kind of its memory.
    pub fn kind(&self) -> MemoryKind {
        self.0
    }
}

impl system::Allocator for Allocator {
    type Attachment = File;

    fn shared(&self) -> Option<File> {
        (self.0 == MemoryKind::Pool).then_some(File::Pool)
    }
}

impl system::Attachment for File {
    type File = HostFile;

    fn frees_memory(&self) -> bool {
        matches!(self, Self::Slot(_))
    }

    fn payload(&self) -> Option<&Arc<HostFile>> {
        if let Self::Payload(file) = self { Some(file) } else { None }
    }
}

/// The connection to a reader.
#[derive(Debug)]
pub struct Connection {
    /// The sockets.
    pub channel: Channel,
    /// The word that the reader may sleep on.
    pub word: Option<WakeWord>,
    /// The calls that the system refuses.
    pub shortages: Shortages,
    /// The system reports the end of the process.
    pub reports_exit: bool,
    /// Descriptors in flight at the last check, and those sent since.
    pub in_flight: usize,
}

/// Readers that are to be woken.
#[derive(Debug, Default)]
pub struct Sleepers(Vec<Sleeping>);

#[derive(Debug)]
enum Sleeping {
    Socket(Channel),
    Futex(WakeWord),
}

impl Sleepers {
    /// Wakes them.
    pub fn wake(self) {
        for sleeping in self.0 {
            match sleeping {
                Sleeping::Socket(channel) => channel.wake_reader(),
                Sleeping::Futex(word) => word.wake(),
            }
        }
    }
}

impl system::Connection for Connection {
    type Attachment = File;
    type Sleepers = Sleepers;

    fn send(&mut self, message: &[u8], attachments: &[File]) -> Sent {
        if !attachments.is_empty() && chance(self.shortages.descriptors) {
            Outcome::Shortage.reach();
            return Sent::Short;
        }
        match self.channel.send_to_reader(message, attachments) {
            Ok(true) => {
                self.in_flight += attachments.len();
                Sent::Whole
            }
            Ok(false) => {
                Outcome::SocketFull.reach();
                Sent::Full
            }
            Err(()) => Sent::HungUp("broken pipe".into()),
        }
    }

    fn shut_down(&self) {
        self.channel.close_exporter();
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn has_received_all(&mut self) -> bool {
        self.in_flight = self.channel.files_in_flight();
        self.channel.is_received()
    }

    fn has_share(&self, _: usize) -> bool {
        true
    }

    fn add_to(&self, sleepers: &mut Sleepers, sleeper: Option<Sleeper>) {
        sleepers.0.push(match &self.word {
            Some(word) if sleeper == Some(Sleeper::Futex) => Sleeping::Futex(word.clone()),
            _ => Sleeping::Socket(self.channel.clone()),
        });
    }

    fn reports_exit(&self) -> bool {
        self.reports_exit
    }

    fn check_at(&self) -> Option<Instant> {
        None
    }

    fn has_died(&mut self) -> bool {
        false
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.channel.close_exporter();
    }
}

/// A format: raw video without a layout.
#[derive(Debug)]
pub struct Video;

impl system::Video for Video {
    fn of_caps(_: &str) -> Option<Self> {
        None
    }

    fn period_ns(caps: &str) -> Option<u64> {
        caps.starts_with("video").then_some(16_666_667)
    }

    fn overlapping_plane(&self, _: &[Plane]) -> Option<usize> {
        None
    }
}

impl Simulated {
    /// Allocates memory of this kind and size.
    ///
    /// # Errors
    /// `None` if there is none.
    pub fn allocate(&self, kind: MemoryKind, size: u64) -> Option<Allocation> {
        step("allocate");
        (!chance(self.shortages.memory)).then(|| self.files.slot(kind, size))
    }
}

impl System for Simulated {
    type Slot = Slot;
    type Memory = Allocation;
    type Allocator = Allocator;
    type AdoptedId = u64;
    type MemoryError = ();
    type Attachment = File;
    type Connection = Connection;
    type Sleepers = Sleepers;
    type Page = SharedPage;
    type File = HostFile;
    type Account = Account;
    type Waiter = Interrupt;
    type Gpu = Gpu;
    type GpuError = String;
    type Signals = Signals;
    type Fence = Fences;
    type Copier = Copier;
    type Work = Work;
    type DeviceWork = Work;
    type Video = Video;

    fn now() -> Instant {
        instant()
    }

    fn now_ns() -> u64 {
        now().as_nanos()
    }

    fn gpu(&self) -> Option<&Gpu> {
        self.kind.is_gpu().then_some(&self.gpu)
    }

    fn allocator(&self, kind: MemoryKind) -> Result<Allocator, ()> {
        Ok(Allocator(kind))
    }

    fn slot(&self, id: SlotId, _: bool, allocation: Allocation) -> Slot {
        Slot(Arc::new(Inner { id, allocation }))
    }

    fn share_within_process(&self, slot: &Slot) {
        self.local.borrow_mut().push(slot.0.id);
    }

    fn kept_bytes(&self) -> u64 {
        self.files.kept()
    }

    fn is_mps_client(&self) -> bool {
        false
    }

    fn payload(&self, bytes: &[u8], is_charged: bool) -> Result<File, Unsendable> {
        if chance(self.shortages.payloads) {
            return Err(Unsendable { why: "no memory".into(), is_exhausted: true });
        }
        Ok(File::Payload(self.files.payload(bytes, is_charged)))
    }

    fn store_metadata(&mut self, area: AreaIndex, metadata: &[u8]) -> Option<u32> {
        if metadata.len() > frameshare_protocol::limits::METADATA_AREA {
            return None;
        }
        if !is_dying() {
            self.metadata[area.0 as usize] = metadata.to_vec();
        }
        Some(metadata.len() as u32)
    }

    fn load_metadata(&self, area: AreaIndex, _: u32) -> Vec<u8> {
        self.metadata[area.0 as usize].clone()
    }

    fn large_areas(&self) -> Option<(File, u32)> {
        None
    }

    fn copier(&self) -> Result<Option<Copier>, String> {
        Ok(self.kind.is_gpu().then(|| Copier {
            process: self.process,
            gpu: self.gpu.clone(),
            fails: self.shortages.downloads,
        }))
    }

    fn recycle(&mut self, _: Work) {
        self.recycled += 1;
    }

    fn device_work(&self, slot: &Slot) -> Option<Work> {
        self.device.clone().filter(|_| system::Slot::is_dma_buf(slot))
    }

    fn is_settled(&self, _: &Slot, work: &mut Work) -> bool {
        system::Work::is_done(work)
    }

    fn is_written_by_device(&self, _: &Slot) -> bool {
        false
    }
}
