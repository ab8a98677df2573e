// SPDX-License-Identifier: MIT OR Apache-2.0

//! Hostile exporters of `vmm` memory with timeline fences.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::{Descriptor, EntryIndex, FenceKind, MemoryKind, Reason, SlotId};
use frameshare_cuda::memory::{pool, vmm};
use frameshare_protocol::limits::MAX_SLOT_SIZE;
use frameshare_protocol::message::{EVENT_HANDLE, ToExporter, ToReader};
use frameshare_protocol::page::{Claim, ClaimState, claim_at, queue, timeline, timeline_size};
use frameshare_tests::raw::{Listener, Offer, Page, RawExporter, Seals, encoded, foreign, memfd};
use rustix::fs::{FallocateFlags, SealFlags, fallocate, fcntl_get_seals, ftruncate};

use super::{PATIENCE, TIMELINE, WAKE};
use crate::gpu::{self, Gpu};

/// Required result at the reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The reader fails to connect.
    StaysAway,
    /// The reader gets the frames that were written and ends with an error of this kind. None of
    /// its streams stays stuck.
    Ends(&'static str),
    /// The reader gets all frames.
    Reads,
}
use Fate::{Ends, Reads, StaysAway};

type Harm = fn(&mut Harmer) -> Result<()>;

/// Attacks by the target in the reader: welcome, memory, timeline values.
pub const WELCOMES: &[(&str, Fate, Harm)] = &[
    ("page-is-a-pipe", StaysAway, page_is_a_pipe),
    ("page-too-short", StaysAway, page_too_short),
    ("page-with-a-hole", StaysAway, page_with_a_hole),
    ("page-that-cannot-be-sealed", StaysAway, page_sealed_shut),
    ("page-is-gpu-memory", StaysAway, page_is_gpu_memory),
    ("page-is-missing", StaysAway, page_is_missing),
    ("page-lingers", StaysAway, page_lingers),
    ("wake-lingers", StaysAway, wake_lingers),
    ("page-is-punched-later", Reads, page_is_punched),
    ("gpu-that-is-not-there", StaysAway, another_gpu),
    ("events-that-are-none", StaysAway, bogus_events),
];
pub const MEMORY: &[(&str, Fate, Harm)] = &[
    ("slot-is-a-memory-file", Ends("Memory"), slot_is_a_memfd),
    ("slot-is-a-device", Ends("Memory"), slot_is_a_device),
    ("slot-is-a-pipe", Ends("Memory"), slot_is_a_pipe),
    ("slot-lingers", Ends("Memory"), slot_lingers),
    ("slot-is-a-pool", Ends("Memory"), slot_is_a_pool),
    ("slot-without-descriptor", Ends("Memory"), slot_without_descriptor),
    ("slot-smaller-than-announced", Ends("Memory"), slot_too_small),
    ("slot-of-an-odd-size", Ends("Memory"), slot_of_odd_size),
    ("slot-of-all-there-could-be", Ends("Memory"), slot_of_the_most),
    ("slot-before-its-generation", Ends("Violation"), slot_of_no_generation),
    ("slot-twice", Ends("Violation"), slot_twice),
    ("gpu-memory-as-host-memory", Ends("Memory"), gpu_memory_as_host),
    ("legacy-handle-that-is-none", Ends("Memory"), bogus_legacy),
    ("pool-that-is-none", Ends("Memory"), bogus_pool),
    ("frame-outside-its-slot", Ends("Violation"), frame_outside),
    ("frame-of-no-slot", Ends("Violation"), frame_of_no_slot),
];
pub const WORDS: &[(&str, Fate, Harm)] = &[
    ("word-never-written", Ends("Stalled"), never_written),
    ("word-never-written-under-another-head", Ends("Stalled"), never_written_and_no_head),
    ("word-written-over-all-the-time", Ends("Stalled"), written_over),
    ("word-never-written-as-if-by-the-reader-itself", Ends("Stalled"), never_written_by_a_double),
    ("word-never-written-in-one-entry", Ends("Stalled"), never_written_in_one_entry),
    ("word-goes-back", Ends("Violation"), goes_back),
    ("word-half-of-all-numbers-ahead", Ends("Violation"), half_ahead),
    ("word-never-written-and-nonsense", Ends("Violation"), never_written_and_nonsense),
    ("word-never-written-after-goodbye", Ends("CutOff"), never_written_after_goodbye),
];

/// Size of a frame and of its allocation in bytes; the driver's minimum.
pub const SIZE: u64 = 512 << 10;
const SLOT: u64 = 2 << 20;
const CREDIT: usize = 4;
/// Number of frames written before the attack.
pub const HONEST: u64 = 3;

/// A hostile exporter with one reader.
pub struct Harmer {
    gpu: Gpu,
    listener: Listener,
    exporter: Option<RawExporter>,
    /// The timeline page: its mapping and the descriptor that was sent.
    words: Option<(Arc<Page>, OwnedFd)>,
    memory: Option<vmm::Allocation>,
    /// Overwrites the values that the reader stores.
    scribbler: Option<Scribbler>,
}

/// Thread that writes one timeline value continuously.
struct Scribbler {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Scribbler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl Harmer {
    /// Listens at the socket path of a stream.
    pub fn open(path: &str, device: usize) -> Result<Harmer> {
        let _ = std::fs::remove_file(path);
        let (gpu, listener) = (Gpu::open(device)?, Listener::bind(Path::new(path))?);
        Ok(Harmer { gpu, listener, exporter: None, words: None, memory: None, scribbler: None })
    }

    /// Accepts a reader and attacks it.
    pub fn harm(&mut self, attack: &str) -> Result<()> {
        let all = [WELCOMES, MEMORY, WORDS].into_iter().flatten();
        let (_, fate, harm) = all.clone().find(|(name, ..)| *name == attack).context("unknown attack")?;
        match harm(self) {
            // The reader may leave before the attack is complete: the case reads its error.
            Err(error) if *fate != Reads && has_left(&error) => Ok(()),
            done => done,
        }
    }

    /// Returns the offer of an honest exporter: with the timeline page, for this GPU.
    fn offer(&mut self) -> Result<Offer> {
        let page = memfd(timeline_size(CREDIT) as u64)?;
        self.words = Some((Arc::new(Page::writable(&page, timeline_size(CREDIT))?), page.try_clone()?));
        rustix::fs::fcntl_add_seals(&page, SealFlags::SHRINK | SealFlags::GROW)?;
        let mut offer = Offer::new(CREDIT, 4, 1)?;
        offer.fds.push(page);
        offer.welcome.fence = FenceKind::Timeline;
        offer.welcome.gpu = Some(self.gpu.context.device().uuid().0);
        Ok(offer)
    }

    fn send(&mut self, offer: Offer) -> Result<()> {
        self.exporter = Some(offer.send(&self.listener, PATIENCE)?);
        Ok(())
    }

    /// Sends the given page instead of the real timeline page.
    fn send_page(&mut self, page: OwnedFd) -> Result<()> {
        let mut offer = self.offer()?;
        offer.fds[TIMELINE] = page;
        self.send(offer)
    }

    fn exporter(&mut self) -> Result<&mut RawExporter> {
        self.exporter.as_mut().context("no reader is connected")
    }

    fn ready(&self) -> Result<Arc<Page>> {
        Ok(self.words.as_ref().context("no timeline page was created")?.0.clone())
    }

    fn generation(&mut self, memory: MemoryKind, slot_size: u64) -> Result<()> {
        Ok(self
            .exporter()?
            .send_message(&ToReader::Generation { generation: 1, memory, slot_size, adopted: false }, None)?)
    }

    fn slot(&mut self, slot: u32, handle: Vec<u8>, fd: Option<BorrowedFd<'_>>) -> Result<()> {
        Ok(self
            .exporter()?
            .send_message(&ToReader::Slot { slot: SlotId { generation: 1, index: slot }, handle }, fd)?)
    }

    /// Accepts a reader as an honest exporter does, and sends it one slot.
    fn meet(&mut self) -> Result<()> {
        let offer = self.offer()?;
        self.send(offer)?;
        self.hand_over()
    }

    fn hand_over(&mut self) -> Result<()> {
        let memory = vmm::Allocation::new(&self.gpu.context, SLOT as usize)?;
        let fd = memory.export()?;
        self.memory = Some(memory);
        self.generation(MemoryKind::Vmm, SLOT)?;
        self.slot(0, Vec::new(), Some(fd.as_fd()))
    }

    /// Accepts a reader, sends it a slot with the given memory, and publishes a frame that is never
    /// written.
    fn meet_with(
        &mut self,
        memory: MemoryKind,
        size: u64,
        fd: Option<OwnedFd>,
        handle: Vec<u8>,
    ) -> Result<()> {
        let offer = self.offer()?;
        self.send(offer)?;
        self.generation(memory, size)?;
        self.slot(0, handle, fd.as_ref().map(AsFd::as_fd))?;
        self.publish_unwritten()
    }

    /// Publishes a frame without signaling its ready fence.
    fn publish_unwritten(&mut self) -> Result<()> {
        self.exporter()?.publish_as(Descriptor {
            slot: SlotId { generation: 1, index: 0 },
            size: SIZE,
            ..Descriptor::default()
        });
        Ok(())
    }

    /// Publishes a frame as an honest exporter does, after the previous one was read.
    fn publish(&mut self) -> Result<()> {
        self.wait_until_read()?;
        let start = self.memory.as_ref().context("no memory was allocated")?.ptr();
        let next = self.exporter()?.next;
        gpu::fill(start, SIZE, gpu::byte_of(next.0), &self.gpu.stream)?;
        self.gpu.stream.synchronize()?;
        self.ready()?[timeline::READY].store(next.0, Ordering::Release);
        self.publish_unwritten()
    }

    fn publish_some(&mut self) -> Result<()> {
        (0..HONEST).try_for_each(|_| self.publish())?;
        self.wait_until_read()
    }

    /// Waits until the reader holds no frame. The reader's GPU may still read the last one; its
    /// release value tells when it is done.
    fn wait_until_read(&mut self) -> Result<()> {
        let words = self.ready()?;
        let exporter = self.exporter()?;
        let is_read = |entry: usize| {
            let claim = Claim::decode(exporter.claims[claim_at(EntryIndex(entry))].load(Ordering::Acquire));
            let word = words[timeline::ENTRIES + entry].load(Ordering::Acquire);
            claim.state == ClaimState::Revoked
                || (claim.state == ClaimState::Released && word == claim.sequence.0)
        };
        wait_for(|| (0..CREDIT).all(is_read)).context("the reader does not release its frames")
    }

    /// Waits until the reader has taken the newest frame.
    fn wait_until_taken(&mut self) -> Result<()> {
        let exporter = self.exporter()?;
        let newest = exporter.next.previous();
        let entry = newest.0 as usize % CREDIT;
        let taken = || {
            let claim = Claim::decode(exporter.claims[claim_at(EntryIndex(entry))].load(Ordering::Acquire));
            claim.sequence == newest && matches!(claim.state, ClaimState::Taken | ClaimState::Released)
        };
        wait_for(taken).context("the reader does not take the frame")
    }
}

fn wait_for(is_so: impl Fn() -> bool) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        ensure!(Instant::now() < until, "the condition was not met in time");
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

fn has_left(error: &anyhow::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset};
    let of = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().map(|io| io.kind())
    };
    error.chain().any(|cause| matches!(of(cause), Some(BrokenPipe | ConnectionReset)))
}

fn pipe() -> Result<OwnedFd> {
    Ok(rustix::pipe::pipe()?.0)
}

fn page_is_a_pipe(harmer: &mut Harmer) -> Result<()> {
    harmer.send_page(pipe()?)
}

fn page_too_short(harmer: &mut Harmer) -> Result<()> {
    harmer.send_page(memfd(timeline_size(CREDIT) as u64 / 2)?)
}

/// The page has a hole: the kernel allocates it on first access, charged to the reader's memory.
fn page_with_a_hole(harmer: &mut Harmer) -> Result<()> {
    let page = memfd(0)?;
    ftruncate(&page, timeline_size(CREDIT) as u64)?;
    harmer.send_page(page)
}

/// A page that is sealed against further seals, so that the reader cannot protect it against holes.
fn page_sealed_shut(harmer: &mut Harmer) -> Result<()> {
    let page = memfd(timeline_size(CREDIT) as u64)?;
    Seals::Size.put_on(&page)?;
    harmer.send_page(page)
}

fn page_is_gpu_memory(harmer: &mut Harmer) -> Result<()> {
    let memory = vmm::Allocation::new(&harmer.gpu.context, SLOT as usize)?;
    // The size that the driver reports for its descriptors is irrelevant here.
    let page = memory.export()?;
    harmer.memory = Some(memory);
    harmer.send_page(page)
}

fn page_is_missing(harmer: &mut Harmer) -> Result<()> {
    let mut offer = harmer.offer()?;
    offer.fds.truncate(TIMELINE);
    harmer.send(offer)
}

/// Sends a lingering socket instead of one descriptor of the welcome.
fn welcome_with_lingering(harmer: &mut Harmer, at: usize) -> Result<()> {
    let (offer, fd) = (harmer.offer()?, foreign::lingering()?);
    let channel = harmer.listener.accept(PATIENCE)?;
    channel.receive(PATIENCE)?;
    let mut fds: Vec<_> = offer.fds.iter().map(AsFd::as_fd).collect();
    fds[at] = fd.as_fd();
    let sent = channel.send(&encoded(ToReader::Welcome(offer.welcome.clone()).encode()), &fds);
    fd.sent();
    harmer.exporter = Some(offer.on(channel));
    Ok(sent?)
}

fn page_lingers(harmer: &mut Harmer) -> Result<()> {
    welcome_with_lingering(harmer, TIMELINE)
}

fn wake_lingers(harmer: &mut Harmer) -> Result<()> {
    welcome_with_lingering(harmer, WAKE)
}

/// After the reader has sealed the page, neither its size nor its content can be taken away.
fn page_is_punched(harmer: &mut Harmer) -> Result<()> {
    harmer.meet()?;
    let (words, page) = harmer.words.as_ref().context("no timeline page was created")?;
    let sealed = || fcntl_get_seals(page).is_ok_and(|seals| seals.contains(SealFlags::FUTURE_WRITE));
    wait_for(sealed).context("the reader did not seal the page")?;
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    ensure!(fallocate(page, hole, 0, 4096).is_err(), "a hole was punched into the page");
    ensure!(ftruncate(page, 0).is_err(), "the page was truncated");
    words[timeline::READY].store(0, Ordering::Release);
    harmer.publish_some()?;
    let end = ToReader::EndOfStream { before: harmer.exporter()?.next };
    harmer.exporter()?.send_message(&end, None)?;
    harmer.exporter()?.wake_reader();
    Ok(())
}

fn another_gpu(harmer: &mut Harmer) -> Result<()> {
    let mut offer = harmer.offer()?;
    offer.welcome.gpu = Some([0x5a; 16]);
    harmer.send(offer)
}

fn bogus_events(harmer: &mut Harmer) -> Result<()> {
    let mut offer = harmer.offer()?;
    offer.fds.truncate(TIMELINE);
    offer.welcome.fence = FenceKind::Event;
    offer.welcome.events = vec![0xa5; 2 * CREDIT * EVENT_HANDLE];
    harmer.send(offer)
}

fn slot_is_a_memfd(harmer: &mut Harmer) -> Result<()> {
    let fd = memfd(SLOT)?;
    Seals::SizeAndWrites.put_on(&fd)?;
    harmer.meet_with(MemoryKind::Vmm, SLOT, Some(fd), Vec::new())
}

fn slot_is_a_device(harmer: &mut Harmer) -> Result<()> {
    harmer.meet_with(MemoryKind::Vmm, SLOT, Some(File::open("/dev/null")?.into()), Vec::new())
}

fn slot_is_a_pipe(harmer: &mut Harmer) -> Result<()> {
    harmer.meet_with(MemoryKind::Vmm, SLOT, Some(pipe()?), Vec::new())
}

fn slot_lingers(harmer: &mut Harmer) -> Result<()> {
    let offer = harmer.offer()?;
    harmer.send(offer)?;
    harmer.generation(MemoryKind::Vmm, SLOT)?;
    let fd = foreign::lingering()?;
    let sent = harmer.slot(0, Vec::new(), Some(fd.as_fd()));
    fd.sent();
    sent?;
    harmer.publish_unwritten()
}

fn slot_is_a_pool(harmer: &mut Harmer) -> Result<()> {
    let pool = pool::Pool::new(&harmer.gpu.context)?;
    harmer.meet_with(MemoryKind::Vmm, SLOT, Some(pool.as_fd().try_clone_to_owned()?), Vec::new())
}

fn slot_without_descriptor(harmer: &mut Harmer) -> Result<()> {
    harmer.meet_with(MemoryKind::Vmm, SLOT, None, Vec::new())
}

/// Announces a size that differs from the allocation's.
fn announce(harmer: &mut Harmer, size: u64) -> Result<()> {
    let memory = vmm::Allocation::new(&harmer.gpu.context, SLOT as usize)?;
    let fd = memory.export()?;
    harmer.memory = Some(memory);
    harmer.meet_with(MemoryKind::Vmm, size, Some(fd), Vec::new())
}

fn slot_too_small(harmer: &mut Harmer) -> Result<()> {
    announce(harmer, 2 * SLOT)
}

fn slot_of_odd_size(harmer: &mut Harmer) -> Result<()> {
    announce(harmer, SLOT - 4096)
}

fn slot_of_the_most(harmer: &mut Harmer) -> Result<()> {
    announce(harmer, MAX_SLOT_SIZE)
}

fn slot_of_no_generation(harmer: &mut Harmer) -> Result<()> {
    let offer = harmer.offer()?;
    harmer.send(offer)?;
    let memory = vmm::Allocation::new(&harmer.gpu.context, SLOT as usize)?;
    let fd = memory.export()?;
    harmer.slot(0, Vec::new(), Some(fd.as_fd()))?;
    harmer.publish_unwritten()
}

fn slot_twice(harmer: &mut Harmer) -> Result<()> {
    harmer.meet()?;
    let fd = harmer.memory.as_ref().context("no memory was allocated")?.export()?;
    harmer.slot(0, Vec::new(), Some(fd.as_fd()))?;
    harmer.publish_unwritten()
}

fn gpu_memory_as_host(harmer: &mut Harmer) -> Result<()> {
    let memory = vmm::Allocation::new(&harmer.gpu.context, SLOT as usize)?;
    let fd = memory.export()?;
    harmer.memory = Some(memory);
    harmer.meet_with(MemoryKind::Host, SLOT, Some(fd), Vec::new())
}

fn bogus_legacy(harmer: &mut Harmer) -> Result<()> {
    harmer.meet_with(MemoryKind::Legacy, SLOT, None, vec![0xa5; 64])
}

fn bogus_pool(harmer: &mut Harmer) -> Result<()> {
    let offer = harmer.offer()?;
    harmer.send(offer)?;
    let fd = memfd(SLOT)?;
    let generation =
        ToReader::Generation { generation: 1, memory: MemoryKind::Pool, slot_size: SLOT, adopted: false };
    harmer.exporter()?.send_message(&generation, Some(fd.as_fd()))?;
    harmer.slot(0, vec![0xa5; 64], None)?;
    harmer.publish_unwritten()
}

fn frame_outside(harmer: &mut Harmer) -> Result<()> {
    harmer.meet()?;
    harmer.publish_some()?;
    let next = harmer.exporter()?.next;
    harmer.ready()?[timeline::READY].store(next.0, Ordering::Release);
    let outside = Descriptor {
        slot: SlotId { generation: 1, index: 0 },
        offset: SLOT - SIZE + 1,
        size: SIZE,
        ..Descriptor::default()
    };
    harmer.exporter()?.publish_as(outside);
    Ok(())
}

fn frame_of_no_slot(harmer: &mut Harmer) -> Result<()> {
    harmer.meet()?;
    harmer.publish_some()?;
    let next = harmer.exporter()?.next;
    harmer.ready()?[timeline::READY].store(next.0, Ordering::Release);
    harmer.exporter()?.publish_as(Descriptor {
        slot: SlotId { generation: 1, index: 7 },
        size: SIZE,
        ..Descriptor::default()
    });
    Ok(())
}

/// An app that waits for its stream requests no further frame meanwhile.
fn never_written(harmer: &mut Harmer) -> Result<()> {
    harmer.meet()?;
    harmer.publish_some()?;
    harmer.publish_unwritten()
}

/// The published head contradicts the values that streams wait for.
fn never_written_and_no_head(harmer: &mut Harmer) -> Result<()> {
    never_written(harmer)?;
    harmer.wait_until_taken()?;
    harmer.exporter()?.queue[queue::HEAD].store(0, Ordering::Release);
    Ok(())
}

/// The exporter continuously restores the old value over the one that the reader's CPU stores for
/// it.
fn written_over(harmer: &mut Harmer) -> Result<()> {
    never_written(harmer)?;
    harmer.wait_until_taken()?;
    harmer.exporter()?.queue[queue::HEAD].store(0, Ordering::Release);
    let (words, stop) = (harmer.ready()?, Arc::new(AtomicBool::new(false)));
    let stopped = stop.clone();
    let run = move || {
        while !stopped.load(Ordering::Relaxed) {
            words[timeline::READY].store(HONEST, Ordering::Relaxed);
        }
    };
    harmer.scribbler = Some(Scribbler { stop, thread: Some(thread::spawn(run)) });
    Ok(())
}

/// Possession of the reader's nonce does not prove that a peer is the reader.
fn never_written_by_a_double(harmer: &mut Harmer) -> Result<()> {
    let mut offer = harmer.offer()?;
    let channel = harmer.listener.accept(PATIENCE)?;
    let (packet, _) = channel.receive(PATIENCE)?.context("the peer closed the connection")?;
    let ToExporter::Hello(hello) = ToExporter::decode(&packet)? else {
        bail!("the first message is not Hello")
    };
    offer.welcome.nonce = hello.nonce;
    let fds: Vec<_> = offer.fds.iter().map(AsFd::as_fd).collect();
    channel.send(&encoded(ToReader::Welcome(offer.welcome.clone()).encode()), &fds)?;
    harmer.exporter = Some(offer.on(channel));
    harmer.hand_over()?;
    harmer.publish_some()?;
    harmer.publish_unwritten()
}

/// Publishes all frames in one queue entry, so that the previous frame appears to be released.
fn never_written_in_one_entry(harmer: &mut Harmer) -> Result<()> {
    harmer.meet()?;
    harmer.publish_some()?;
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until && !harmer.exporter()?.channel.hangs_up(Duration::ZERO) {
        let exporter = harmer.exporter()?;
        let (sequence, messages) = (exporter.next, exporter.messages);
        let frame = Descriptor {
            slot: SlotId { generation: 1, index: 0 },
            size: SIZE,
            sequence,
            messages,
            ..Descriptor::default()
        };
        exporter.producer.publish(EntryIndex(0), &frame);
        exporter.next = exporter.next.next();
        exporter.wake_reader();
        thread::sleep(FENCE_TIMEOUT / 20);
    }
    Ok(())
}

/// The ready value is set back after the frame was seen as written and before a stream waits for
/// it.
fn goes_back(harmer: &mut Harmer) -> Result<()> {
    harmer.meet()?;
    harmer.publish_some()?;
    harmer.publish()?;
    harmer.wait_until_taken()?;
    harmer.ready()?[timeline::READY].store(0, Ordering::Release);
    Ok(())
}

/// Streams compare modulo 2^64: a value more than half the range ahead counts as behind.
fn half_ahead(harmer: &mut Harmer) -> Result<()> {
    never_written(harmer)?;
    harmer.wait_until_taken()?;
    harmer.ready()?[timeline::READY].store((HONEST + 1).wrapping_add(1 << 63), Ordering::Release);
    Ok(())
}

/// The reader gives up its exporter for another reason while its streams wait for it.
fn never_written_and_nonsense(harmer: &mut Harmer) -> Result<()> {
    never_written(harmer)?;
    harmer.wait_until_taken()?;
    Ok(harmer.exporter()?.channel.send(&[0xaa; 100], &[])?)
}

/// After a close message the reader waits for work that has begun, but not without
/// limit.
fn never_written_after_goodbye(harmer: &mut Harmer) -> Result<()> {
    never_written(harmer)?;
    harmer.wait_until_taken()?;
    let goodbye = ToReader::Goodbye { reason: Reason::Failed, text: "enough".into() };
    Ok(harmer.exporter()?.send_message(&goodbye, None)?)
}

/// Fence timeout of the attacked readers: no test here needs longer.
pub const FENCE_TIMEOUT: Duration = Duration::from_millis(500);
