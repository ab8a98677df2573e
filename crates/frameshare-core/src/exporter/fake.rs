// SPDX-License-Identifier: MIT OR Apache-2.0

//! A system of plain values for unit tests. Calls succeed unless a test says otherwise, and time
//! passes only by [`pass`].

use super::{
    accounts::{MemoryFile, Purpose},
    ending::Ending,
    limits::{Limits, SlowReaders},
    link::{CannotAdopt, Delivery, Files, Link, Packet, Start, WaitingFrame},
    notice::ReaderInfo,
    peer::Peer,
    shortage::Unsendable,
    state::State,
    system::{self, Sent, System},
    unit::Unit,
};
use crate::selected::Selected;
use frameshare_protocol::{
    AreaIndex, Descriptor, EntryIndex, FenceKind, MemoryKind, Plane, Policy, Sequence, SlotId,
    message::{Hello, ToReader},
    page::{claims_size, queue_size},
};
use frameshare_queue::{Producer, Sleeper};
use std::{
    cell::Cell,
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

thread_local! {
    static NOW: Cell<Instant> = Cell::new(Instant::now());
}

/// Lets time pass for this thread.
pub fn pass(time: Duration) {
    NOW.set(NOW.get() + time);
}

/// A reader that has just been admitted to an empty stream.
pub fn link(id: u64, credit: u32, policy: Policy, connection: Connection) -> Link<Fake> {
    let page = |bytes: usize| Words((0..bytes / 8).map(|_| AtomicU64::new(0)).collect());
    let entries = credit as usize;
    let delivery = Delivery {
        producer: Producer::new(page(queue_size(entries)), page(claims_size(entries)), entries, Sequence(1)),
        next: Sequence(1),
        fence: Fence(FenceKind::None),
        files: Files::new(Account::default(), file(0)),
        start: Start::AtOnce,
        choice: Selected { kind: FenceKind::None, why: String::new() },
        downloads: false,
        cannot_adopt: CannotAdopt::default(),
        hello: Hello {
            nonce: [0; 16],
            name: String::new(),
            policy,
            credit,
            max_queued: 0,
            memory: vec![MemoryKind::Host],
            fences: vec![FenceKind::None],
            gpus: Vec::new(),
            context: 0,
            host_fallback: false,
            max_gop_bytes: 0,
        },
    };
    let info = ReaderInfo { id, pid: 0, uid: 0, name: String::new(), policy, credit, max_queued: credit };
    Link::new(info, Peer::default(), connection, delivery)
}

/// A file of this size that is used again.
pub fn file(size: u64) -> Arc<File> {
    Arc::new(File { size, is_reusable: true, is_given: AtomicBool::new(false) })
}

/// A file that is not used again.
pub fn single_use_file(size: u64) -> Arc<File> {
    Arc::new(File { size, is_reusable: false, is_given: AtomicBool::new(false) })
}

/// Memory of this size that is no file.
pub fn memory(size: u64) -> Memory {
    Memory { size, file: None, is_dma_buf: false }
}

/// A slot in this memory.
pub fn slot(index: u32, memory: Memory) -> Slot {
    Slot(Arc::new((SlotId { generation: 1, index }, memory)))
}

/// An object that a test never makes.
#[derive(Clone, Debug)]
pub enum Never {}

/// The system.
#[derive(Debug, Default)]
pub struct Fake {
    /// There is no memory of this kind.
    pub lacks: Option<MemoryKind>,
    /// A device writes all dma-bufs.
    pub device_works: bool,
}

#[derive(Debug)]
pub struct File {
    size: u64,
    is_reusable: bool,
    is_given: AtomicBool,
}

#[derive(Clone, Debug)]
pub struct Memory {
    pub size: u64,
    pub file: Option<Arc<File>>,
    pub is_dma_buf: bool,
}

#[derive(Clone, Debug)]
pub struct Slot(Arc<(SlotId, Memory)>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocator(pub MemoryKind);

#[derive(Clone, Debug, Default)]
pub struct Attachment {
    pub frees_memory: bool,
    pub payload: Option<Arc<File>>,
}

/// A connection; a clone is the test's view of it.
#[derive(Clone, Debug, Default)]
pub struct Connection(pub Arc<Mutex<Socket>>);

#[derive(Debug, Default)]
pub struct Socket {
    /// The messages that were sent.
    pub sent: Vec<Vec<u8>>,
    /// The outcome of the next attempts, if none is sent.
    pub refuses: Option<Sent>,
    /// Number of descriptors in flight.
    pub in_flight: usize,
    /// The connection was shut down.
    pub is_shut_down: bool,
}

#[derive(Debug)]
pub struct Words(Vec<AtomicU64>);

/// An account; a clone is the test's view of it.
#[derive(Clone, Debug, Default)]
pub struct Account(pub Arc<Mutex<Charges>>);

/// The properties of an account, and the calls that it has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Charges {
    pub is_charged: bool,
    pub is_full: bool,
    pub claims_cannot_be_freed: bool,
    /// The sizes of given and of lost files.
    pub given: Vec<(u64, Purpose)>,
    pub lost: Vec<u64>,
    pub claims: Option<Claims>,
}

/// The end of a reader's claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claims {
    Freed,
    Charged,
}

pub struct Signals;

#[derive(Debug)]
pub struct Fence(pub FenceKind);

/// Numbers the copies from 0 on.
#[derive(Default)]
pub struct Copier {
    pub started: u32,
    /// The copies that have ended.
    pub ended: BTreeMap<u32, Result<(), String>>,
    pub recycled: Vec<u32>,
    pub has_failed: bool,
}

/// GPU work that is done or not.
#[derive(Debug, PartialEq, Eq)]
pub struct Work(pub bool);

impl System for Fake {
    type Slot = Slot;
    type Memory = Memory;
    type Allocator = Allocator;
    type AdoptedId = u32;
    type MemoryError = &'static str;
    type Attachment = Attachment;
    type Connection = Connection;
    type Sleepers = Vec<Option<Sleeper>>;
    type Page = Words;
    type File = File;
    type Account = Account;
    type Waiter = Never;
    type Gpu = Never;
    type GpuError = &'static str;
    type Signals = Signals;
    type Fence = Fence;
    type Copier = Copier;
    type Work = Work;
    type DeviceWork = ();
    type Video = Never;

    fn now() -> Instant {
        NOW.get()
    }
    fn now_ns() -> u64 {
        unreachable!()
    }
    fn gpu(&self) -> Option<&Never> {
        None
    }
    fn allocator(&self, kind: MemoryKind) -> Result<Allocator, &'static str> {
        if self.lacks == Some(kind) { Err("no memory") } else { Ok(Allocator(kind)) }
    }
    fn slot(&self, id: SlotId, _: bool, memory: Memory) -> Slot {
        Slot(Arc::new((id, memory)))
    }
    fn share_within_process(&self, _: &Slot) {}
    fn kept_bytes(&self) -> u64 {
        0
    }
    fn is_mps_client(&self) -> bool {
        false
    }
    fn payload(&self, bytes: &[u8], _: bool) -> Result<Attachment, Unsendable> {
        Ok(Attachment { frees_memory: false, payload: Some(file(bytes.len() as u64)) })
    }
    fn store_metadata(&mut self, _: AreaIndex, _: &[u8]) -> Option<u32> {
        unreachable!()
    }
    fn load_metadata(&self, _: AreaIndex, _: u32) -> Vec<u8> {
        unreachable!()
    }
    fn large_areas(&self) -> Option<(Attachment, u32)> {
        None
    }
    fn copier(&self) -> Result<Option<Copier>, &'static str> {
        Ok(None)
    }
    fn recycle(&mut self, _: Work) {}
    fn device_work(&self, slot: &Slot) -> Option<()> {
        (slot.0.1.is_dma_buf && self.device_works).then_some(())
    }
    fn is_settled(&self, _: &Slot, (): &mut ()) -> bool {
        !self.device_works
    }
    fn is_written_by_device(&self, _: &Slot) -> bool {
        self.device_works
    }
}

impl MemoryFile for File {
    fn size(&self) -> u64 {
        self.size
    }
    fn is_reusable(&self) -> bool {
        self.is_reusable
    }
    fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Relaxed)
    }
    fn note_given(&self) {
        self.is_given.store(true, Ordering::Relaxed)
    }
}

impl system::Slot for Slot {
    type Attachment = Attachment;
    type File = File;
    fn id(&self) -> SlotId {
        self.0.0
    }
    fn size(&self) -> u64 {
        self.0.1.size
    }
    fn is_in_host(&self) -> bool {
        true
    }
    fn is_dma_buf(&self) -> bool {
        self.0.1.is_dma_buf
    }
    fn file(&self) -> Option<&Arc<File>> {
        self.0.1.file.as_ref()
    }
    fn is_registered(&self) -> bool {
        false
    }
    fn is_free(&mut self) -> bool {
        self.holders() == 1
    }
    fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }
    fn handle(&self) -> (Vec<u8>, Option<Attachment>) {
        (Vec::new(), None)
    }
}

impl system::Allocator for Allocator {
    type Attachment = Attachment;
    fn shared(&self) -> Option<Attachment> {
        None
    }
}

impl system::Attachment for Attachment {
    type File = File;
    fn frees_memory(&self) -> bool {
        self.frees_memory
    }
    fn payload(&self) -> Option<&Arc<File>> {
        self.payload.as_ref()
    }
}

impl system::Connection for Connection {
    type Attachment = Attachment;
    type Sleepers = Vec<Option<Sleeper>>;
    fn send(&mut self, message: &[u8], attachments: &[Attachment]) -> Sent {
        let mut socket = self.0.lock().unwrap();
        if let Some(refused) = &socket.refuses {
            return refused.clone();
        }
        socket.in_flight += attachments.len();
        socket.sent.extend([message.to_vec()]);
        Sent::Whole
    }
    fn shut_down(&self) {
        self.0.lock().unwrap().is_shut_down = true;
    }
    fn in_flight(&self) -> usize {
        self.0.lock().unwrap().in_flight
    }
    fn has_received_all(&mut self) -> bool {
        self.in_flight() == 0
    }
    fn has_share(&self, _: usize) -> bool {
        true
    }
    fn add_to(&self, sleepers: &mut Self::Sleepers, sleeper: Option<Sleeper>) {
        sleepers.push(sleeper)
    }
    fn reports_exit(&self) -> bool {
        true
    }
    fn check_at(&self) -> Option<Instant> {
        None
    }
    fn has_died(&mut self) -> bool {
        false
    }
}

impl frameshare_queue::Page for Words {
    type Word = AtomicU64;
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

impl system::Account for Account {
    type File = File;
    fn is_charged(&self) -> bool {
        self.0.lock().unwrap().is_charged
    }
    fn give(&self, file: &Arc<File>, purpose: Purpose) -> Result<(), String> {
        let mut charges = self.0.lock().unwrap();
        if charges.is_full {
            return Err("full".into());
        }
        charges.given.extend([(file.size, purpose)]);
        Ok(())
    }
    fn lose(&self, file: &Arc<File>) {
        self.0.lock().unwrap().lost.push(file.size)
    }
    fn free_claims(&self) -> bool {
        let mut charges = self.0.lock().unwrap();
        charges.claims = Some(Claims::Freed);
        !charges.claims_cannot_be_freed
    }
    fn charge_claims(&self) {
        self.0.lock().unwrap().claims = Some(Claims::Charged);
    }
}

impl system::Signals for Signals {
    type Error = &'static str;
    type Written<'a> = ();
    /// Whether the work is under way.
    type Writing = bool;
    type Present = ();
    fn is_complete((): ()) -> bool {
        true
    }
    fn begin(&mut self, (): ()) -> Result<Option<bool>, &'static str> {
        Ok(None)
    }
    fn hold(&self) -> Result<(), String> {
        Ok(())
    }
    fn begin_earlier(&mut self) -> Result<(), &'static str> {
        Ok(())
    }
    fn flush(&mut self, _: Option<&mut bool>) -> Result<(), String> {
        Ok(())
    }
    fn is_writing(&self, writing: &bool) -> bool {
        *writing
    }
    fn present(&self) -> Option<()> {
        Some(())
    }
}

impl system::Fence for Fence {
    type Signals = Signals;
    fn kind(&self) -> FenceKind {
        self.0
    }
    fn signal_ready(&mut self, _: EntryIndex, _: Sequence, _: &mut Signals) -> Result<(), Ending> {
        Ok(())
    }
    fn is_released(&mut self, _: EntryIndex, _: Sequence) -> Result<bool, Ending> {
        Ok(true)
    }
}

impl system::Copier for Copier {
    type Slot = Slot;
    type Written = ();
    type Done = u32;
    type Error = &'static str;
    fn start(&mut self, (): (), _: &Slot, _: &Slot, _: &Descriptor) -> Result<u32, String> {
        self.started += 1;
        if self.has_failed { Err("failed".into()) } else { Ok(self.started - 1) }
    }
    fn ended(&self, done: &u32) -> Result<Option<Result<(), String>>, &'static str> {
        if self.has_failed { Err("failed") } else { Ok(self.ended.get(done).cloned()) }
    }
    fn recycle(&mut self, done: u32) {
        self.recycled.push(done)
    }
}

impl system::Work for Work {
    fn is_done(&self) -> bool {
        self.0
    }
}

impl system::Waiter for Never {
    fn wake(&self) {}
    fn clear(&self) {}
}

impl system::Gpu for Never {
    type Error = &'static str;
    type Current<'a> = ();
    fn enter(&self) -> Result<(), &'static str> {
        match *self {}
    }
}

impl system::Video for Never {
    fn of_caps(_: &str) -> Option<Self> {
        None
    }
    fn period_ns(_: &str) -> Option<u64> {
        None
    }
    fn overlapping_plane(&self, _: &[Plane]) -> Option<usize> {
        match *self {}
    }
}

/// A descriptor whose last holder frees memory of a GPU.
pub const GPU_MEMORY: Attachment = Attachment { frees_memory: true, payload: None };
/// Another descriptor.
pub const SOCKET: Attachment = Attachment { frees_memory: false, payload: None };

/// A message with this number.
pub fn message(number: u64) -> ToReader {
    ToReader::EndOfStream { before: Sequence(number) }
}

/// The number of an encoded message.
pub fn number(bytes: &[u8]) -> u64 {
    match ToReader::decode(bytes) {
        Ok(ToReader::EndOfStream { before }) => before.0,
        other => panic!("{other:?}"),
    }
}

/// A message with this number, and a file of `payload` bytes.
pub fn with_file(number: u64, payload: u64) -> Packet<Attachment> {
    let attachment = Attachment { frees_memory: false, payload: Some(file(payload)) };
    Packet::with_file(&message(number), attachment, payload).unwrap()
}

/// A stream with lossless reader 1, which has not taken the only frame that it may hold. The
/// frame is in memory of this kind.
pub fn stream(kind: MemoryKind, connection: Connection) -> State<Fake> {
    let limits = Limits {
        max_slots: 8,
        max_held: 1,
        reader_timeout: Duration::from_secs(10),
        slow_readers: SlowReaders::QueueThenDisconnect,
        keeps_frames: false,
        history_pause: Duration::ZERO,
        max_queued_bytes: 1 << 20,
        max_queued_time: Duration::from_secs(10),
        fence_timeout: Duration::from_secs(10),
        max_retired_bytes: 0,
        max_gop_bytes: 0,
    };
    let memory = Selected { kind: MemoryKind::Host, why: String::new() };
    let mut state = State::new(Fake::default(), limits, memory, Signals);
    let mut reader = link(1, 1, Policy::Lossless, connection);
    let (entry, sequence) = (EntryIndex(0), Sequence(1));
    reader.leases.offer(entry, AreaIndex(0), sequence, Unit::Whole, kind, &mut Signals).unwrap();
    reader.leases.publish(&Descriptor { sequence, ..Descriptor::default() });
    state.readers_mut().add(reader);
    state
}

/// Queues one more frame, which waits for the reader's credit.
pub fn queue_frame(state: &mut State<Fake>) {
    let descriptor = Descriptor { sequence: Sequence(2), ..Descriptor::default() };
    let frame = WaitingFrame { area: AreaIndex(1), descriptor, oversized: None, bytes: 4096 };
    state.readers_mut()[0].push_backlog(frame);
}

/// Disconnects the reader, which still holds its frame.
pub fn drain(state: &mut State<Fake>) {
    let reader = state.readers_mut().remove(0);
    state.readers_mut().drain(reader);
}
