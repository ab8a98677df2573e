// SPDX-License-Identifier: MIT OR Apache-2.0

//! One process of a rule: executes its commands on the implementation under test.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::fence::event::{ExporterEvents, ReaderEvents};
use frameshare::fence::none::NoFence;
use frameshare::fence::timeline::{ReaderTimeline, Timeline, TimelinePage};
use frameshare::fence::{ExporterFence, FenceError, FenceState, ReaderFence, Signals, Written};
use frameshare::memory::{self, Allocation, Allocator, Import, Importer, MemoryError};
use frameshare::{EntryIndex, FenceKind, Label, MemoryKind, Sequence};
use frameshare_cuda::context::Context;
use frameshare_cuda::device::Device;
use frameshare_cuda::fence;
use frameshare_cuda::stream::Stream;
use frameshare_gpu_harness::content;

use super::broken::{BrokenAllocator, BrokenExporterFence, BrokenImporter, BrokenReaderFence};
use super::bytes::Bytes;
use super::command::{Command, Content, Defect, Frame, Id, Memory, Reply};

/// Time limit of [`Command::Publish`] for the release of an earlier frame.
const PATIENCE: Duration = Duration::from_secs(10);

type Answer = (Reply, Option<OwnedFd>);

/// Objects of a process, by the numbers that the rule uses for them.
#[derive(Default)]
pub struct Worker {
    gpu: Option<Gpu>,
    allocators: Vec<Arc<dyn Allocator>>,
    allocations: Vec<Option<Arc<dyn Allocation>>>,
    importers: Vec<Arc<dyn Importer>>,
    imports: Vec<Option<Arc<dyn Import>>>,
    exporting: Option<(Box<dyn ExporterFence>, Signals)>,
    reading: Option<Box<dyn ReaderFence>>,
    stalled: Option<mpsc::Sender<()>>,
    captures: Option<Captures>,
}

/// Context and streams, for kinds that need a GPU.
struct Gpu {
    context: Arc<Context>,
    stream: Arc<Stream>,
    second: Stream,
}

/// Copies of frames.
struct Captures {
    memory: Arc<dyn Allocation>,
    size: usize,
    count: usize,
}

fn done() -> Answer {
    (Reply::Done, None)
}

fn pattern(content: Content, size: usize) -> Vec<u8> {
    match content {
        Content::Fill(value) => vec![value; size],
        Content::Pattern(seed) => content::bytes(seed, size),
    }
}

fn add<T>(table: &mut Vec<T>, object: T) -> Id {
    table.push(object);
    table.len() - 1
}

fn get<T>(table: &[Option<T>], id: Id) -> Result<&T> {
    table.get(id).and_then(Option::as_ref).with_context(|| format!("unknown object {id}"))
}

fn refused(error: &MemoryError) -> Answer {
    (Reply::Refused { doing: error.operation.to_string(), kind: error.kind, text: error.to_string() }, None)
}

fn state(polled: Result<FenceState, FenceError>) -> Answer {
    match polled {
        Ok(state) => (Reply::Answer(state == FenceState::Ready), None),
        Err(error) => (Reply::Fault(error.to_string()), None),
    }
}

fn signaled(result: Result<(), FenceError>) -> Answer {
    match result {
        Ok(()) => done(),
        Err(error) => (Reply::Fault(error.to_string()), None),
    }
}

impl Worker {
    /// Executes one command.
    pub fn obey(&mut self, command: Command, fds: Vec<OwnedFd>) -> Result<Answer> {
        let fd = fds.into_iter().next();
        Ok(match command {
            Command::Allocator { kind, defect } => {
                if let Some(lacking) = self.prepare_memory(kind)? {
                    return Ok((Reply::Lacking(lacking), None));
                }
                let allocator = self.allocator(kind, defect)?;
                let fd = allocator.fd().map(|fd| fd.try_clone_to_owned()).transpose()?;
                (Reply::Object(add(&mut self.allocators, allocator)), fd)
            }
            Command::Allocate { allocator, size } => {
                let allocator = self.allocators.get(allocator).context("unknown allocator")?;
                match allocator.allocate(size) {
                    Ok(allocation) => {
                        let size = allocation.size();
                        (Reply::Allocated { id: add(&mut self.allocations, Some(allocation)), size }, None)
                    }
                    Err(error) => refused(&error),
                }
            }
            Command::Export(allocation) => {
                let handle = get(&self.allocations, allocation)?.handle();
                let fd = handle.fd.map(|fd| fd.try_clone_to_owned()).transpose()?;
                (Reply::Bytes(handle.bytes.to_vec()), fd)
            }
            Command::Free(allocation) => {
                self.allocations[allocation] = None;
                done()
            }
            Command::Importer { kind, exporter, defect } => {
                if let Some(lacking) = self.prepare_memory(kind)? {
                    return Ok((Reply::Lacking(lacking), None));
                }
                let importer = self.importer(kind, exporter, defect, fd)?;
                (Reply::Object(add(&mut self.importers, importer)), None)
            }
            Command::Import { importer, size, handle } => {
                let importer = self.importers.get(importer).context("unknown importer")?;
                match importer.import(size, &handle, fd.as_ref().map(OwnedFd::as_fd)) {
                    Ok(import) => (Reply::Object(add(&mut self.imports, Some(import))), None),
                    Err(error) => refused(&error),
                }
            }
            Command::DropImport(import) => {
                self.imports[import] = None;
                done()
            }
            Command::Write { memory, size, content } => {
                self.bytes().write(self.address(memory)?, &pattern(content, size))?;
                done()
            }
            Command::Differing { memory, size, content } => {
                let found = self.bytes().read(self.address(memory)?, size)?;
                let expected = pattern(content, size);
                let wrong = found.iter().zip(&expected).filter(|(found, expected)| found != expected).count();
                (Reply::Number(wrong as u64), None)
            }
            Command::TryFill { import, size, value } => {
                let address = get(&self.imports, import)?.address();
                (Reply::Answer(self.bytes().try_fill(address, size, value)?), None)
            }

            Command::ExporterFence { kind, entries, defect } => self.exporter_fence(kind, entries, defect)?,
            Command::ReaderFence { kind, entries, handles, exporter, defect } => {
                self.reader_fence(kind, entries, &handles, fd, exporter, defect)?
            }
            Command::Stall => {
                self.stalled = self.bytes().stall()?;
                (Reply::Answer(self.stalled.is_some()), None)
            }
            Command::Resume => {
                self.stalled = None;
                done()
            }
            Command::Idle { ms } => (Reply::Answer(self.is_idle_within(Duration::from_millis(ms))?), None),
            Command::SignalReady(frame) => self.signal_ready(frame)?,
            Command::PollReady(Frame { entry, sequence }) => {
                state(self.reading()?.poll_ready(entry, sequence))
            }
            Command::WaitReady(frame) => self.wait_ready(frame)?,
            Command::SignalReleased { frame, second } => self.signal_released(frame, second)?,
            Command::PollReleased(frame) => state(self.poll_released(frame)?),

            Command::Captures { count, size } => {
                let kind = if self.gpu.is_some() { MemoryKind::Legacy } else { MemoryKind::Host };
                let memory = self.allocator(kind, None)?.allocate((count * size) as u64)?;
                self.captures = Some(Captures { memory, size, count: 0 });
                done()
            }
            Command::Publish { allocation, frame, after, size, value, delays_us } => {
                self.await_release(frame.entry, after)?;
                let (bytes, address) = (self.bytes(), get(&self.allocations, allocation)?.address());
                for (half, delay) in delays_us.into_iter().enumerate() {
                    bytes.delay(delay)?;
                    bytes.fill(address, half * size / 2, size / 2, value)?;
                }
                self.signal_ready(frame)?
            }
            Command::Take { import, frame, size, delay_us } => self.take(import, frame, size, delay_us)?,
            Command::Torn(values) => (Reply::Number(self.torn(&values)?), None),
        })
    }

    /// Opens the GPU for a kind of memory. Returns what this machine lacks for it, if so.
    fn prepare_memory(&mut self, kind: MemoryKind) -> Result<Option<String>> {
        if kind != MemoryKind::Host {
            self.open_gpu()?;
        }
        Ok(memory::select::select(Some(kind), self.context()).err().map(|lacking| lacking.to_string()))
    }

    /// The same for a kind of fence.
    fn prepare_fence(&mut self, kind: FenceKind) -> Result<Option<String>> {
        let kind = match kind {
            FenceKind::None => return Ok(None),
            FenceKind::Event => fence::Kind::Event,
            FenceKind::Timeline => fence::Kind::Timeline,
            kind => bail!("unknown kind of fence: {kind}"),
        };
        self.open_gpu()?;
        let device = self.context().context("no GPU is open")?.device();
        Ok(fence::supports(kind, device).err().map(|error| error.to_string()))
    }

    fn open_gpu(&mut self) -> Result<()> {
        if self.gpu.is_none() {
            let context = Context::primary(&Device::get(0)?)?;
            let (stream, second) = (Arc::new(Stream::new(&context)?), Stream::new(&context)?);
            self.gpu = Some(Gpu { context, stream, second });
        }
        Ok(())
    }

    fn context(&self) -> Option<&Arc<Context>> {
        self.gpu.as_ref().map(|gpu| &gpu.context)
    }

    fn bytes(&self) -> Bytes {
        Bytes::new(self.gpu.as_ref().map(|gpu| gpu.stream.clone()))
    }

    fn address(&self, memory: Memory) -> Result<memory::Address> {
        Ok(match memory {
            Memory::Allocation(id) => get(&self.allocations, id)?.address(),
            Memory::Import(id) => get(&self.imports, id)?.address(),
        })
    }

    fn allocator(&self, kind: MemoryKind, defect: Option<Defect>) -> Result<Arc<dyn Allocator>> {
        let inner = memory::allocator(kind, self.context(), &Label::default())?;
        Ok(match defect {
            None => inner,
            Some(defect) => {
                Arc::new(BrokenAllocator { inner, bytes: self.bytes(), defect, first: Mutex::default() })
            }
        })
    }

    fn importer(
        &self,
        kind: MemoryKind,
        exporter: u32,
        defect: Option<Defect>,
        fd: Option<OwnedFd>,
    ) -> Result<Arc<dyn Importer>> {
        let inner = memory::importer(kind, self.context(), fd.as_ref().map(OwnedFd::as_fd))?;
        Ok(match defect {
            None => inner,
            Some(defect) => {
                let own = self.allocator(kind, None)?;
                Arc::new(BrokenImporter { inner, own, exporter, defect, used: AtomicBool::new(false) })
            }
        })
    }

    fn exporter_fence(&mut self, kind: FenceKind, entries: usize, defect: Option<Defect>) -> Result<Answer> {
        if let Some(lacking) = self.prepare_fence(kind)? {
            return Ok((Reply::Lacking(lacking), None));
        }
        let (mut handles, mut page_fd) = (Vec::new(), None);
        let inner: Box<dyn ExporterFence> = match (kind, self.context()) {
            (FenceKind::Event, Some(gpu)) => {
                let events = ExporterEvents::new(gpu, entries).map_err(|error| anyhow::anyhow!(error))?;
                handles = events.handles()?;
                Box::new(events)
            }
            (FenceKind::Timeline, Some(gpu)) => {
                let (page, fd) = TimelinePage::create(entries, &Label::default())?;
                page_fd = Some(fd);
                Box::new(Timeline::new(gpu, page)?)
            }
            _ => Box::new(NoFence),
        };
        let fence = match defect {
            None => inner,
            Some(defect) => Box::new(BrokenExporterFence { inner, defect }),
        };
        self.exporting = Some((fence, Signals::new(self.context())?));
        Ok((Reply::Bytes(handles), page_fd))
    }

    fn reader_fence(
        &mut self,
        kind: FenceKind,
        entries: usize,
        handles: &[u8],
        page: Option<OwnedFd>,
        exporter: u32,
        defect: Option<Defect>,
    ) -> Result<Answer> {
        if let Some(lacking) = self.prepare_fence(kind)? {
            return Ok((Reply::Lacking(lacking), None));
        }
        let inner: Box<dyn ReaderFence> = match (kind, self.context()) {
            (FenceKind::Event, Some(gpu)) => Box::new(ReaderEvents::open(gpu, handles)?),
            (FenceKind::Timeline, Some(gpu)) => {
                let page = TimelinePage::map(page.context("no timeline page was sent")?, entries)?;
                Box::new(ReaderTimeline::new(gpu, page)?)
            }
            _ => Box::new(NoFence),
        };
        self.reading = Some(match defect {
            None => inner,
            Some(defect) => Box::new(BrokenReaderFence { inner, exporter, defect, ready: AtomicU64::new(0) }),
        });
        Ok(done())
    }

    fn reading(&self) -> Result<&dyn ReaderFence> {
        self.reading.as_deref().context("this process has no reader's fence")
    }

    fn poll_released(&mut self, Frame { entry, sequence }: Frame) -> Result<Result<FenceState, FenceError>> {
        let (fence, _) = self.exporting.as_mut().context("this process has no exporter's fence")?;
        Ok(fence.poll_released(entry, sequence))
    }

    fn signal_ready(&mut self, Frame { entry, sequence }: Frame) -> Result<Answer> {
        let (fence, signals) = self.exporting.as_mut().context("this process has no exporter's fence")?;
        signals.begin(self.gpu.as_ref().map_or(Written::Cpu, |gpu| Written::On(&gpu.stream)))?;
        Ok(signaled(fence.signal_ready(entry, sequence, signals).and_then(|()| signals.flush(None))))
    }

    /// Without a GPU, checks that the frame is ready: host frames are complete when they are
    /// published.
    fn wait_ready(&self, Frame { entry, sequence }: Frame) -> Result<Answer> {
        let Some(gpu) = &self.gpu else {
            ensure!(
                self.reading()?.poll_ready(entry, sequence)? == FenceState::Ready,
                "a host frame is pending"
            );
            return Ok(done());
        };
        Ok(signaled(self.reading()?.wait_ready(entry, sequence, &gpu.stream)))
    }

    /// Does nothing without a GPU: the release of a host frame is the claim in its queue.
    fn signal_released(&self, Frame { entry, sequence }: Frame, second: bool) -> Result<Answer> {
        let Some(gpu) = &self.gpu else { return Ok(done()) };
        let stream = if second { &gpu.second } else { &*gpu.stream };
        Ok(signaled(self.reading()?.signal_released(entry, sequence, stream)))
    }

    fn is_idle_within(&self, patience: Duration) -> Result<bool> {
        let Some(gpu) = &self.gpu else { return Ok(true) };
        let end = Instant::now() + patience;
        while !gpu.stream.query()?.is_ready() {
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(true)
    }

    fn await_release(&mut self, entry: EntryIndex, sequence: Option<u64>) -> Result<()> {
        let Some(sequence) = sequence else { return Ok(()) };
        let end = Instant::now() + PATIENCE;
        while self.poll_released(Frame { entry, sequence: Sequence(sequence) })?? == FenceState::Pending {
            ensure!(Instant::now() < end, "frame {sequence} is not released");
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    fn take(&mut self, import: Id, frame: Frame, size: usize, delay_us: u64) -> Result<Answer> {
        let waits = self.wait_ready(frame)?;
        if let Reply::Fault(_) = waits.0 {
            return Ok(waits);
        }
        let (bytes, from) = (self.bytes(), get(&self.imports, import)?.address());
        bytes.delay(delay_us)?;
        let captures = self.captures.as_mut().context("no captures were prepared")?;
        bytes.copy(captures.memory.address(), captures.count * captures.size, from, size)?;
        captures.count += 1;
        self.signal_released(frame, false)
    }

    fn torn(&self, values: &[u8]) -> Result<u64> {
        let captures = self.captures.as_ref().context("no captures were prepared")?;
        ensure!(captures.count == values.len(), "{} frames were captured", captures.count);
        let found = self.bytes().read(captures.memory.address(), captures.count * captures.size)?;
        let frames = found.chunks(captures.size).zip(values);
        let torn = frames.map(|(frame, value)| frame.iter().filter(|byte| *byte != value).count());
        Ok(torn.sum::<usize>() as u64)
    }
}
