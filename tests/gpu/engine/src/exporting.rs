// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter role of a peer.

use std::any::Any;
use std::fs;
use std::os::fd::IntoRawFd as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use frameshare::exporter::{
    self, Draft, Exporter, Frame, History, Notice, PublishError, Purpose, Slot, SlowReaders,
};
use frameshare::fence::Written;
use frameshare::{Endpoint, Format, Sequence, Wait};
use frameshare_cuda::capture;
use frameshare_cuda::context::Context;
use frameshare_cuda::event::Event;
use frameshare_cuda::fence::timeline::Page;
use frameshare_cuda::host::{Access, Registration};
use frameshare_cuda::memory::legacy;
use frameshare_cuda::stream::Stream;
use frameshare_gpu_harness::{GIVEN_UP, graph, random::Random};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::gpu::{self, Gpu, Scratch};
use crate::job::{
    Bind, Circulate, Circulated, Command, Fate, Publish, Published, ReaderStats, Reply, Says, Slow, Stats,
    misplaced,
};
use crate::measure::Meter;

/// An exporter and its GPU resources.
pub struct Exporting {
    /// Memory of host slots that the driver does not register again. Dropped before the slots.
    registered: Vec<Registration>,
    // Dropped before the streams: the exporter may wait for work on them.
    exporter: Exporter,
    gpu: Gpu,
    /// Stream of the second writer.
    second: Stream,
    /// Set when a stream of it was named.
    other_device: Option<Gpu>,
    source: Option<Scratch>,
    load: Option<Scratch>,
    /// Slots held, as by an upstream pool.
    held: Vec<Slot>,
    notices: Arc<Mutex<Vec<String>>>,
    random: Random,
    /// Sequence number of the next frame.
    next: u64,
    owners: Owners,
}

/// Counters of adopted foreign allocations and of notified owners.
#[derive(Clone, Default)]
pub struct Owners {
    adopted: usize,
    notified: Arc<AtomicUsize>,
    returned: Arc<AtomicUsize>,
}

impl Owners {
    /// Waits up to `ms` until all owners were notified; returns how many were.
    pub fn wait(&self, ms: u64) -> Result<u64> {
        counts_to(&self.notified, self.adopted, Duration::from_millis(ms));
        self.notified()
    }

    /// Returns how many frames may be written again.
    pub fn returned(&self) -> Result<u64> {
        self.returned.load(Ordering::SeqCst).try_into().context("counter overflow")
    }

    /// Returns how many owners were notified.
    pub fn notified(&self) -> Result<u64> {
        self.notified.load(Ordering::SeqCst).try_into().context("counter overflow")
    }
}

/// Per-frame guard of adopted memory: counts when its owner may write the frame again.
struct Kept(Arc<AtomicUsize>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Bytes of a fill that keeps the GPU busy briefly, or more on a GPU with much memory, which is
/// faster.
const LOAD: u64 = 256 << 20;

/// Owner object of an adopted allocation: frees it and counts when dropped.
struct Owner {
    memory: Option<legacy::Allocation>,
    notified: Arc<AtomicUsize>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.memory.take());
        self.notified.fetch_add(1, Ordering::SeqCst);
    }
}

impl Exporting {
    /// Creates a stream.
    pub fn bind(bind: &Bind) -> Result<Exporting> {
        let gpu = Gpu::open(bind.device)?;
        let default = exporter::Config::default();
        let ms = |ms: Option<u64>| ms.map_or(GIVEN_UP, Duration::from_millis);
        let mut config = exporter::Config::default()
            .max_slots(bind.max_slots.unwrap_or(default.max_slots))
            .max_held_limit(bind.max_held_limit.unwrap_or(default.max_held_limit))
            .reader_timeout(ms(bind.reader_timeout_ms))
            .fence_timeout(ms(bind.fence_timeout_ms))
            .max_retired_bytes(bind.max_retired_bytes.unwrap_or(default.max_retired_bytes))
            .trusted_uids(bind.trusted_uids.clone())
            .memory(bind.memory)
            .fence(bind.fence)
            .slow_readers(if bind.queues { SlowReaders::QueueThenWait } else { SlowReaders::Wait })
            .max_queued_time(GIVEN_UP)
            .max_queued_bytes(1 << 30)
            .history(History::Frames(u32::from(bind.keeps_last)))
            .gpu((!bind.in_host).then(|| gpu.context.clone()));
        config.history_pause = Duration::ZERO;
        let notices = Arc::new(Mutex::new(Vec::new()));
        let reported = notices.clone();
        let observer =
            move |notice| reported.lock().unwrap_or_else(PoisonError::into_inner).push(in_words(&notice));
        Ok(Exporting {
            exporter: Exporter::bind(&Endpoint::at(&bind.path)?, config, observer)?,
            second: gpu.another_stream()?,
            other_device: None,
            gpu,
            source: None,
            load: None,
            held: Vec::new(),
            registered: Vec::new(),
            notices,
            random: Random::new(bind.seed),
            next: 1,
            owners: Owners::default(),
        })
    }

    /// Returns the context that frames are written in.
    pub fn context(&self) -> Arc<Context> {
        self.gpu.context.clone()
    }

    /// Returns the counters of adopted memory.
    pub fn owners(&self) -> Owners {
        self.owners.clone()
    }

    /// Drops the exporter; returns the duration in ms.
    pub fn unbind(self) -> Result<u64> {
        let Exporting { exporter, registered, .. } = self;
        drop(registered);
        let begin = Instant::now();
        drop(exporter);
        Ok(u64::try_from(begin.elapsed().as_millis())?)
    }

    /// Executes one command.
    pub fn work(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::AwaitReaders { count, ms } => {
                let until = Instant::now() + Duration::from_millis(ms);
                while self.exporter.reader_count() != count {
                    let found = self.exporter.reader_count();
                    ensure!(Instant::now() < until, "{found} readers are connected instead of {count}");
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
            Command::Publish(publish) => return self.publish(&publish).map(Reply::Published),
            Command::Soil { kind } => gpu::soil(&self.gpu, kind)?,
            Command::HoldSlots { size } => {
                while let Ok(slot) = self.exporter.acquire(size, Purpose::Pool, Wait::No) {
                    self.held.push(slot);
                }
                return Ok(Reply::Number(self.held.len() as u64));
            }
            Command::Stall { us } => gpu::stall(&self.gpu.stream, us)?,
            Command::Format { caps } => self.exporter.set_format(Format { caps, video: None }),
            Command::HostMemory { yes } => self.exporter.use_host_memory(yes),
            Command::PublishHeld => {
                let slot = self.held.pop().context("no slot is held")?;
                gpu::write(&slot, 0, slot.size(), self.next, &self.gpu.stream)?;
                let frame = Frame { written: Written::On(&self.gpu.stream), ..frame_in(&slot) };
                self.exporter.publish(frame, Wait::Forever)?;
                self.next += 1;
            }
            Command::LimitFiles { limited } => limit_files(limited)?,
            Command::RegisterHostSlots { size, count } => self.register_host_slots(size, count)?,
            Command::EndOfStream => self.exporter.end_of_stream(),
            Command::Drain { ms } => {
                let drained = self.exporter.drain(Wait::For(Duration::from_millis(ms)))?;
                ensure!(drained, "lossless readers have not released all frames");
            }
            Command::ExporterStats => return Ok(Reply::Stats(self.stats())),
            Command::Notices => {
                return Ok(Reply::Texts(self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()));
            }
            Command::Adopt { size, slow } => return self.adopt(size, slow).map(Reply::Number),
            Command::Circulate(circulate) => return self.circulate(circulate).map(Reply::Circulated),
            Command::DropAfter { sources, us } => return self.drop_after(sources, us).map(Reply::Number),
            Command::DropAfterInCapture => self.drop_after_in_capture()?,
            Command::DropRegistered { us } => self.drop_registered(us)?,
            Command::LoseContext => gpu::lose_context(&self.gpu)?,
            Command::RetireAdopted { ms } => return self.retire_adopted(ms).map(Reply::Number),
            other => return misplaced(&other),
        }
        Ok(Reply::Done)
    }

    fn drop_registered(&self, us: u64) -> Result<()> {
        let gpu = &self.gpu.context;
        let stream = Stream::new(gpu)?;
        gpu::stall(&stream, us)?;
        let words: Arc<Vec<AtomicU64>> = Arc::new((0..512).map(AtomicU64::new).collect());
        let page = Page::new(gpu, words, Access::ReadWrite)?;
        let done = Event::behind(&stream, gpu)?;
        frameshare::drop_behind(gpu, Some(vec![done]), (page, stream));
        Ok(())
    }

    fn publish(&mut self, job: &Publish) -> Result<Published> {
        if job.copy && self.source.as_ref().is_none_or(|source| source.size() < job.size) {
            self.source = Some(Scratch::new(&self.gpu, job.size)?);
        }
        if job.load > 0 && self.load.is_none() {
            let (_, total) = self.gpu.context.memory_left()?;
            self.load = Some(Scratch::new(&self.gpu, LOAD.max(total / 64))?);
        }
        if job.second_elsewhere {
            self.second = self.gpu.another()?.another_stream()?;
        }
        if job.says == Says::OtherDevice && self.other_device.is_none() {
            self.other_device = Some(Gpu::open(1)?);
        }
        let begin = Instant::now();
        let (mut last, mut longest_gap) = (begin, Duration::ZERO);
        let mut meter = Meter::new(job.count_from);
        for index in 0..job.frames {
            meter.before(index);
            let slot = self.exporter.acquire(job.size, Purpose::Copy, Wait::Forever)?;
            let (stream, slow, fate): (&Stream, _, _) = match job.second.filter(|_| index % 2 == 1) {
                Some(slow) => (&self.second, slow, job.second_fate),
                None => (&self.gpu.stream, job.slow, Fate::Published),
            };
            let temporary = (fate == Fate::Stale).then(|| self.gpu.another_stream()).transpose()?;
            let stream = temporary.as_ref().unwrap_or(stream);
            // A frame without a sequence number has other bytes than the next one.
            let unnumbered = if !matches!(fate, Fate::Published | Fate::Late) { 100 } else { 0 };
            gpu::slow(stream, slow, &mut self.random)?;
            if let Some(load) = &self.load {
                for _ in 0..job.load {
                    load.fill(stream)?;
                }
            }
            match self.source.as_ref().filter(|_| job.copy) {
                Some(source) => source.copy_to(&slot, job.size, stream)?,
                None if job.unwritten => {}
                None => gpu::write(&slot, 0, job.size, self.next + unnumbered, stream)?,
            }
            let metadata = self.next.to_le_bytes().repeat(job.metadata);
            let written = match job.says {
                _ if slot.as_ptr().is_some() => Written::Cpu,
                Says::Truth => Written::On(stream),
                Says::First => Written::On(&self.gpu.stream),
                Says::Somewhere => Written::Somewhere,
                Says::OtherDevice => {
                    let other = self.other_device.as_ref().context("the other device is not open")?;
                    other.stream.wait_for(stream)?;
                    Written::On(&other.stream)
                }
            };
            let frame = Frame { written, size: job.size, metadata: &metadata, ..frame_in(&slot) };
            let frame = match fate {
                Fate::Stale => {
                    let stale = Gpu::raw_handle(stream);
                    drop(temporary);
                    let frame = Frame { written: Written::On(&stale), ..frame_in(&slot) };
                    let _announced = capture::announce();
                    let published = self.exporter.publish(frame, Wait::Forever);
                    ensure!(matches!(published, Err(PublishError::Gpu(_))), "{published:?}");
                    continue;
                }
                Fate::Published => frame,
                Fate::Late => Frame { late_after: Some(0), ..frame },
                Fate::Refused => {
                    let published =
                        self.exporter.publish(Frame { offset: slot.size(), ..frame }, Wait::Forever);
                    ensure!(matches!(published, Err(PublishError::Invalid(_))), "{published:?}");
                    continue;
                }
                Fate::Dropped => {
                    let draft = Draft::new(slot, Some(&self.gpu.context));
                    draft.expose();
                    continue;
                }
                Fate::Discarded => {
                    let Written::On(stream) = written else { bail!("the writer is not known") };
                    self.exporter.drop_after(stream, Box::new(slot))?;
                    continue;
                }
            };
            let sequence = self.exporter.publish(frame, Wait::Forever)?;
            ensure!(
                sequence == Sequence(self.next),
                "frame {} was published with sequence number {sequence}",
                self.next
            );
            self.next += 1;
            longest_gap = longest_gap.max(last.elapsed());
            last = Instant::now();
            pace(begin + Duration::from_micros(job.pace_us) * u32::try_from(index + 1)?);
        }
        if job.drain {
            let drained = self.exporter.drain(Wait::For(Duration::from_secs(20)))?;
            ensure!(drained, "lossless readers have not released all frames");
        }
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        Ok(Published {
            frames: job.frames,
            ms: ms(begin.elapsed()),
            longest_gap_ms: ms(longest_gap),
            steady: meter.stop(job.frames),
        })
    }

    fn register_host_slots(&mut self, size: u64, count: usize) -> Result<()> {
        self.exporter.use_host_memory(true);
        let acquire = |_| self.exporter.acquire(size, Purpose::Copy, Wait::No);
        let slots: Vec<Slot> = (0..count).map(acquire).collect::<Result<_, _>>()?;
        self.exporter.use_host_memory(false);
        for slot in slots {
            self.registered.push(gpu::register(&self.gpu, slot)?);
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        let stats = self.exporter.stats();
        let readers = stats.readers.iter().map(|reader| ReaderStats {
            pid: reader.info.pid,
            held: reader.held,
            queued: reader.queued,
            waiting: reader.waiting,
            sent: reader.sent,
            lost: reader.lost,
            fence: format!("{}: {}", reader.fence.kind, reader.fence.why),
        });
        Stats {
            published: stats.published,
            slots: stats.slots,
            free_slots: stats.free_slots,
            slot_size: stats.slot_size,
            retired_bytes: stats.retired_bytes,
            memory: format!("{}: {}", stats.memory.kind, stats.memory.why),
            copies: stats.copies.into_iter().map(|copies| (copies.reason, copies.count)).collect(),
            is_mps_client: stats.is_mps_client,
            readers: readers.collect(),
        }
    }

    /// Publishes a frame in the middle of a foreign allocation; returns its address.
    fn adopt(&mut self, size: u64, slow: Slow) -> Result<u64> {
        // A typical offset of a plane or a crop within its allocation.
        const OFFSET: u64 = 4096;
        let (start, owner) = self.allocate(OFFSET + size)?;
        let (slot, offset) = self.exporter.adopt(start + OFFSET, owner)?;
        ensure!(offset == OFFSET, "the frame is at offset {offset} of its allocation instead of {OFFSET}");
        self.owners.adopted += 1;
        gpu::slow(&self.gpu.stream, slow, &mut self.random)?;
        gpu::write(&slot, offset, size, self.next, &self.gpu.stream)?;
        // The slot is looked up for each frame: the result must be the same slot.
        let (again, _) = self.exporter.adopt(start + OFFSET, Box::new(()))?;
        ensure!(again.address() == slot.address(), "the engine made two slots for one allocation");
        let returned = self.owners.returned.clone();
        self.publish_kept(&again, offset, size, returned)?;
        Ok(start)
    }

    /// Allocates foreign memory. Returns its address and its owner object.
    fn allocate(&self, size: u64) -> Result<(u64, Box<Owner>)> {
        let memory = legacy::Allocation::new(&self.gpu.context, usize::try_from(size)?)?;
        let start = memory.ptr();
        Ok((start, Box::new(Owner { memory: Some(memory), notified: self.owners.notified.clone() })))
    }

    /// Publishes a frame in adopted memory, whose return `returned` counts.
    fn publish_kept(
        &mut self,
        slot: &Slot,
        offset: u64,
        size: u64,
        returned: Arc<AtomicUsize>,
    ) -> Result<()> {
        let keep: Option<Box<dyn Any + Send>> = Some(Box::new(Kept(returned)));
        let written = Written::On(&self.gpu.stream);
        let frame = Frame { written, offset, size, keep, ..frame_in(slot) };
        self.exporter.publish(frame, Wait::Forever)?;
        self.next += 1;
        Ok(())
    }

    /// Publishes frames in so many foreign allocations in turns, each when it is returned.
    fn circulate(&mut self, circulate: Circulate) -> Result<Circulated> {
        let Circulate { buffers, frames, pace_us, work_us, beside_copies } = circulate;
        const SIZE: u64 = 1 << 20;
        let mut memory = Vec::new();
        for _ in 0..buffers {
            let (start, owner) = self.allocate(SIZE)?;
            memory.push((self.exporter.adopt(start, owner)?, Arc::new(AtomicUsize::new(0))));
            self.owners.adopted += 1;
        }
        let (begin, slept) = (Instant::now(), service_sleeps()?);
        for index in 0..frames {
            let round = usize::try_from(index)? / buffers;
            let ((slot, offset), returned) = &memory[usize::try_from(index)? % buffers];
            awaited(returned, round)?;
            std::thread::sleep(Duration::from_micros(work_us));
            gpu::write(slot, *offset, SIZE, self.next, &self.gpu.stream)?;
            self.publish_kept(slot, *offset, SIZE, returned.clone())?;
            pace(begin + Duration::from_micros(pace_us) * u32::try_from(index + 1)?);
        }
        let sleeps = service_sleeps()?.saturating_sub(slept);
        for (number, (_, returned)) in memory.iter().enumerate() {
            let count = (usize::try_from(frames)? + buffers - 1 - number) / buffers;
            while beside_copies && returned.load(Ordering::SeqCst) < count {
                std::thread::sleep(Duration::from_millis(30));
                self.exporter.drop_after(&self.gpu.stream, Box::new(()))?;
            }
            awaited(returned, count)?;
        }
        Ok(Circulated { ms: begin.elapsed().as_secs_f64() * 1e3, sleeps })
    }

    /// Copies from sources that come back one after the other.
    fn drop_after(&mut self, sources: u64, us: u64) -> Result<u64> {
        const SIZE: u64 = 1 << 20;
        let returned = Arc::new(AtomicUsize::new(0));
        let begin = Instant::now();
        for index in 0..sources {
            let slot = self.exporter.acquire(SIZE, Purpose::Copy, Wait::No)?;
            gpu::slow(&self.gpu.stream, Slow::Always(us), &mut self.random)?;
            self.exporter.drop_after(&self.gpu.stream, Box::new((Kept(returned.clone()), slot.clone())))?;
            if slot.as_ptr().is_none() {
                let frame = Frame { written: Written::On(&self.gpu.stream), ..frame_in(&slot) };
                self.exporter.publish(frame, Wait::Forever)?;
                self.next += 1;
            }
            awaited(&returned, usize::try_from(index)? + 1)?;
        }
        Ok(u64::try_from(begin.elapsed().as_millis())?)
    }

    fn drop_after_in_capture(&self) -> Result<()> {
        let stream = &self.gpu.stream;
        graph::begin(stream, 0).map_err(|error| anyhow!(error))?;
        let dropped = self.exporter.drop_after(stream, Box::new(Asks(self.exporter.clone())));
        graph::end(stream).map_err(|error| anyhow!(error))?;
        ensure!(dropped.is_err(), "the end of captured work was recorded");
        Ok(())
    }

    fn retire_adopted(&mut self, ms: u64) -> Result<u64> {
        self.exporter.retire_adopted();
        self.owners.wait(ms)
    }
}

/// User data that calls the exporter when it is dropped.
struct Asks(Exporter);

impl Drop for Asks {
    fn drop(&mut self) {
        let _ = self.0.stats();
    }
}

/// Lets this process open no further file, or as many as it may again.
fn limit_files(limited: bool) -> Result<()> {
    /// The first files of the process stay open, those of slots have higher numbers.
    const FIRST: u64 = 16;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    if limited {
        // New files get the lowest free numbers: none below stays free.
        let file = || Ok::<_, anyhow::Error>(fs::File::open("/dev/null")?.into_raw_fd());
        while u64::try_from(file()?)? < FIRST {}
        setrlimit(Resource::Nofile, Rlimit { current: Some(FIRST), maximum })?;
    }
    Ok(())
}

/// A frame that fills a slot.
pub fn frame_in(slot: &Slot) -> Frame<'_> {
    Frame::new(slot, slot.size(), Written::Cpu)
}

/// Waits until a counter has reached a number; returns false at the deadline.
fn counts_to(counter: &AtomicUsize, number: usize, within: Duration) -> bool {
    let until = Instant::now() + within;
    while counter.load(Ordering::SeqCst) < number {
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Waits until so many frames or sources were returned.
fn awaited(returned: &AtomicUsize, count: usize) -> Result<()> {
    ensure!(counts_to(returned, count, GIVEN_UP), "a buffer was not returned");
    Ok(())
}

/// Returns the number of times that this process's service threads slept so far.
fn service_sleeps() -> Result<u64> {
    let mut sleeps = 0;
    for thread in fs::read_dir("/proc/self/task")? {
        // It may end meanwhile.
        let Ok(status) = fs::read_to_string(thread?.path().join("status")) else { continue };
        let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if field("Name:") == Some("frameshare") {
            sleeps += field("voluntary_ctxt_switches:").context("no number of sleeps")?.parse::<u64>()?;
        }
    }
    Ok(sleeps)
}

/// Waits until `next` in the same way as floor.cpp, for comparable measurements.
fn pace(next: Instant) {
    loop {
        let left = next.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > Duration::from_micros(200) {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn in_words(notice: &Notice) -> String {
    match notice {
        Notice::ReaderAdded(reader) => format!("added {}", reader.pid),
        Notice::ReaderRemoved { reader, why, .. } => format!("removed {}: {why}", reader.pid),
        Notice::ReaderRefused { pid, why, .. } => format!("refused {pid}: {why}"),
        Notice::ReaderBlocking { reader, blocked_for } => format!("blocking {}: {blocked_for:?}", reader.pid),
        Notice::SocketLost { why } => format!("socket lost: {why}"),
        Notice::OthersCouldWrite { refused, why } => {
            format!("others could write (refused: {refused}): {why}")
        }
        Notice::SocketBound => "socket bound".into(),
        other => format!("{other:?}"),
    }
}
