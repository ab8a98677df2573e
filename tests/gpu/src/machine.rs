// SPDX-License-Identifier: MIT OR Apache-2.0

//! Peer process: executes the CUDA commands of its case.
//!
//! # Safety
//! This file passes addresses to streams. Memory and captures stay in their tables until a command
//! drops them; a case that drops memory in use does so to observe the result. Host buffers are
//! never unmapped.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use frameshare_cuda::context::Context;
use frameshare_cuda::copy::{Plane, Side};
use frameshare_cuda::device::Device;
use frameshare_cuda::event::Event;
use frameshare_cuda::fence::{self, timeline};
use frameshare_cuda::host::{Access, Registration};
use frameshare_cuda::memory::{self, adopted, legacy, pool, vmm};
use frameshare_cuda::stream::Stream;
use frameshare_cuda::{DevicePtr, Error, Status, calls};
use frameshare_gpu_harness::{Failed, Link, content, isolate};
use rustix::mm::{MapFlags, ProtFlags};

use crate::command::{Command, Id, Reply, Source};
use crate::conformance;
use crate::kernel;
use crate::raw;
use crate::words::Words;

type Result<T> = std::result::Result<T, Failure>;

/// Cause of a failed command: a CUDA error, an invalid request of the case, or an error of a
/// conformance rule's command.
enum Failure {
    Cuda(Error),
    Case(String),
    Other(anyhow::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Cuda(error)
    }
}

fn nonsense(what: impl ToString) -> Failure {
    Failure::Case(what.to_string())
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        match failure {
            Failure::Cuda(error) => {
                Failed { text: error.to_string(), code: error.code(), sticky: error.is_sticky() }
            }
            Failure::Case(text) => Failed { text, code: None, sticky: false },
            Failure::Other(error) => error.into(),
        }
    }
}

/// Executes commands until the other end of the link closes.
pub fn serve(link: &Link) -> anyhow::Result<()> {
    let mut machine = Machine::default();
    frameshare_gpu_harness::obey(link, |command, fds| Ok(machine.obey(command, fds)?))
}

/// Objects by the numbers that the case uses for them.
struct Table<T>(Vec<Option<T>>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table(Vec::new())
    }
}

impl<T> Table<T> {
    fn add(&mut self, object: T) -> (Reply, Option<OwnedFd>) {
        self.0.push(Some(object));
        (Reply::Object(self.0.len() - 1), None)
    }

    fn get(&self, id: Id) -> Result<&T> {
        self.0.get(id).and_then(Option::as_ref).ok_or_else(|| nonsense(format!("unknown object {id}")))
    }

    fn take(&mut self, id: Id) -> Result<T> {
        self.0.get_mut(id).and_then(Option::take).ok_or_else(|| nonsense(format!("unknown object {id}")))
    }
}

enum SomePool {
    Own(Arc<pool::Pool>),
    Imported(Arc<pool::ImportedPool>),
}

enum Memory {
    Vmm(vmm::Allocation),
    VmmImport(vmm::Import),
    Pool(pool::Allocation),
    PoolImport(pool::Import),
    Legacy(legacy::Allocation),
    LegacyImport(legacy::Import),
}

impl Memory {
    fn ptr(&self) -> DevicePtr {
        match self {
            Memory::Vmm(memory) => memory.ptr(),
            Memory::VmmImport(memory) => memory.ptr(),
            Memory::Pool(memory) => memory.ptr(),
            Memory::PoolImport(memory) => memory.ptr(),
            Memory::Legacy(memory) => memory.ptr(),
            Memory::LegacyImport(memory) => memory.ptr(),
        }
    }
}

/// Host memory that streams read or write; never unmapped or unregistered.
struct Buffer {
    start: NonNull<u8>,
    size: usize,
    _registration: Registration,
}

impl Buffer {
    fn new(context: &Arc<Context>, size: usize) -> Result<Buffer> {
        // SAFETY: the kernel chooses an unused address.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                size,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(nonsense)?;
        let start = NonNull::new(start.cast()).ok_or_else(|| nonsense("mmap returned null"))?;
        // SAFETY: the mapping is never undone, and read only after the streams that write it are
        // done.
        let registration = unsafe { Registration::new(context, start, size, Access::ReadWrite, ()) }?;
        Ok(Buffer { start, size, _registration: registration })
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `size` bytes stay mapped; cases request them when the stream that used them is
        // idle.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.size) }
    }
}

#[derive(Default)]
struct Machine {
    contexts: Vec<Arc<Context>>,
    chosen: Id,
    streams: Table<Stream>,
    pools: Table<SomePool>,
    memories: Table<Memory>,
    captures: Table<Buffer>,
    /// Upload buffers of [`Command::Write`].
    sources: Vec<Buffer>,
    events: Table<Event>,
    many: Vec<Event>,
    pages: Table<timeline::Page>,
    /// Senders whose drop resumes the stalled streams.
    held: Vec<mpsc::Sender<()>>,
    /// Memory for [`Command::Load`], and how many bytes of it the GPU fills in 100 µs.
    load: Option<(vmm::Allocation, usize)>,
    /// Kernels of [`Command::Launch`], by the number of their context.
    kernels: BTreeMap<Id, kernel::Store>,
    counted: calls::Snapshot,
    /// Objects of a conformance rule.
    conformance: conformance::Worker,
}

const DONE: (Reply, Option<OwnedFd>) = (Reply::Done, None);

fn bytes(token: &[u8]) -> (Reply, Option<OwnedFd>) {
    (Reply::Bytes(token.to_vec()), None)
}

fn sixty_four(token: &[u8]) -> Result<[u8; 64]> {
    token.try_into().map_err(|_| nonsense("the handle is not 64 bytes long"))
}

fn only(fds: Vec<OwnedFd>) -> Result<OwnedFd> {
    fds.into_iter().next().ok_or_else(|| nonsense("no descriptor was sent with the command"))
}

fn ready(status: Status) -> (Reply, Option<OwnedFd>) {
    (Reply::Ready(status.is_ready()), None)
}

fn access(write: bool) -> Access {
    if write { Access::ReadWrite } else { Access::Read }
}

impl Machine {
    fn context(&self) -> Result<&Arc<Context>> {
        self.contexts.get(self.chosen).ok_or_else(|| nonsense("no context is open"))
    }

    fn word(&self, page: Id, word: usize) -> Result<timeline::Word<'_>> {
        self.pages
            .get(page)?
            .word(word)
            .ok_or_else(|| nonsense(format!("the page has no timeline value {word}")))
    }

    fn obey(&mut self, command: Command, fds: Vec<OwnedFd>) -> Result<(Reply, Option<OwnedFd>)> {
        Ok(match command {
            Command::Conformance(command) => {
                let (reply, fd) = self.conformance.obey(command, fds).map_err(Failure::Other)?;
                (Reply::Conformance(reply), fd)
            }
            Command::Open { device, primary } => self.open(device, primary)?,
            Command::Choose(context) => {
                self.chosen = context;
                DONE
            }
            Command::Supports(name) => self.supports(&name)?,
            Command::Calls => {
                let now = calls::snapshot();
                let text = now.since(&self.counted).to_string();
                self.counted = now;
                (Reply::Text(text), None)
            }
            Command::Surroundings => (Reply::Text(isolate::surroundings()), None),
            Command::Spoil { memory, stream } => (Reply::Text(self.spoil(memory, stream)?), None),
            Command::Exit { threads } => self.exit(threads)?,

            Command::Stream => {
                let stream = Stream::new(self.context()?)?;
                self.streams.add(stream)
            }
            Command::Await { stream, ms } => self.wait_for(stream, Duration::from_millis(ms))?,
            Command::OtherStream(kind) => {
                let stream = raw::stream(self.context()?, kind).map_err(nonsense)?;
                self.streams.add(stream)
            }
            Command::Handle(stream) => {
                (Reply::Number(self.streams.get(stream)?.as_raw().addr() as u64), None)
            }
            Command::IsCapturing(handle) => {
                (Reply::Number(raw::is_capturing(self.context()?, handle).map_err(nonsense)?), None)
            }
            Command::DropStream(stream) => {
                self.streams.take(stream)?;
                DONE
            }
            Command::Sleep { stream, us } => {
                self.streams.get(stream)?.call(move || std::thread::sleep(Duration::from_micros(us)))?;
                DONE
            }
            Command::Hold(stream) => {
                self.hold(stream)?;
                DONE
            }
            Command::HoldInGraph(stream) => {
                let (sender, receiver) = mpsc::channel::<()>();
                let hold = move || _ = receiver.recv();
                raw::launch_graph(self.streams.get(stream)?, hold).map_err(nonsense)?;
                self.held.push(sender);
                DONE
            }
            Command::HoldOnThread => self.hold_on_thread()?,
            Command::Resume => {
                self.held.clear();
                DONE
            }
            Command::Load { stream, us } => {
                self.load(stream, us)?;
                DONE
            }

            Command::Pool => {
                let pool = pool::Pool::new(self.context()?)?;
                self.pools.add(SomePool::Own(pool))
            }
            Command::ExportPool(pool) => match self.pools.get(pool)? {
                SomePool::Own(pool) => {
                    (Reply::Done, Some(pool.as_fd().try_clone_to_owned().map_err(nonsense)?))
                }
                SomePool::Imported(_) => return Err(nonsense("an imported pool cannot be exported")),
            },
            Command::ImportPool => {
                let pool = pool::ImportedPool::new(self.context()?, only(fds)?.as_fd())?;
                self.pools.add(SomePool::Imported(pool))
            }
            Command::Allocate { source, size, stream } => {
                let memory = self.allocate(source, size, stream)?;
                self.memories.add(memory)
            }
            Command::Export(memory) => match self.memories.get(memory)? {
                Memory::Vmm(memory) => {
                    (Reply::Bytes(memory.size().to_le_bytes().to_vec()), Some(memory.export()?))
                }
                Memory::Pool(memory) => bytes(&memory.export()?),
                Memory::Legacy(memory) => bytes(&memory.export()),
                _ => return Err(nonsense("imported memory cannot be exported")),
            },
            Command::ExportAdopted { memory, offset } => {
                let pointer = self.memories.get(memory)?.ptr() + offset as DevicePtr;
                let found = adopted::export(self.context()?, pointer)?;
                if adopted::buffer_id(self.context()?, pointer)? != found.buffer_id {
                    return Err(nonsense("the buffer ID changed between two queries"));
                }
                let (handle, size) = (found.handle.to_vec(), found.size);
                (Reply::Adopted { buffer_id: found.buffer_id, handle, offset: found.offset, size }, None)
            }
            Command::Import { source, token, size, write } => {
                let memory = self.import(source, &token, size, write, fds)?;
                self.memories.add(memory)
            }
            Command::Address(memory) => (Reply::Number(self.memories.get(memory)?.ptr()), None),
            Command::DropMemory(memory) => {
                self.memories.take(memory)?;
                DONE
            }
            Command::DropMemoryAside(memory) => {
                let memory = self.memories.take(memory)?;
                std::thread::spawn(move || drop(memory));
                DONE
            }
            Command::Free { memory, stream } => {
                let memory = self.memories.take(memory)?;
                let stream = self.streams.get(stream)?;
                match memory {
                    Memory::Pool(memory) => memory.free(stream)?,
                    Memory::PoolImport(memory) => memory.free(stream)?,
                    _ => return Err(nonsense("only pool memory can be freed on a stream")),
                }
                DONE
            }

            Command::Fill { memory, offset, size, value, stream } => {
                let to = self.memories.get(memory)?.ptr() + offset as DevicePtr;
                // SAFETY: see the header of the file.
                unsafe { self.streams.get(stream)?.fill(to, value, size) }?;
                DONE
            }
            Command::Write { memory, offset, size, seed, stream } => {
                let mut source = Buffer::new(self.context()?, size)?;
                source.bytes().copy_from_slice(&content::bytes(seed, size));
                let to = self.memories.get(memory)?.ptr() + offset as DevicePtr;
                // SAFETY: see the header of the file.
                unsafe { self.streams.get(stream)?.upload(to, source.start.as_ptr(), size) }?;
                self.sources.push(source);
                DONE
            }
            Command::CopyRows { to, to_pitch, from, from_pitch, width, height, stream } => {
                let to = Plane { at: Side::Device(self.memories.get(to)?.ptr()), pitch: to_pitch };
                let from = Plane { at: Side::Device(self.memories.get(from)?.ptr()), pitch: from_pitch };
                // SAFETY: see the header of the file.
                unsafe { self.streams.get(stream)?.copy_2d(to, from, width, height) }?;
                DONE
            }
            Command::Launch { memory, stream } => {
                let to = self.memories.get(memory)?.ptr();
                let stream = self.streams.get(stream)?;
                let kernel = match self.kernels.entry(self.chosen) {
                    Entry::Occupied(loaded) => loaded.into_mut(),
                    Entry::Vacant(place) => place.insert(kernel::Store::load(stream).map_err(nonsense)?),
                };
                // SAFETY: see the header of the file.
                unsafe { kernel.launch(stream, to) }.map_err(nonsense)?;
                DONE
            }
            Command::Capture { memory, offset, size, stream } => {
                let buffer = Buffer::new(self.context()?, size)?;
                let from = self.memories.get(memory)?.ptr() + offset as DevicePtr;
                // SAFETY: see the header of the file.
                unsafe { self.streams.get(stream)?.download(buffer.start.as_ptr(), from, size) }?;
                self.captures.add(buffer)
            }
            Command::DiffersFromFill { capture, value } => {
                let mut capture = self.captures.take(capture)?;
                let wrong = capture.bytes().iter().filter(|byte| **byte != value).count();
                (Reply::Number(wrong as u64), None)
            }
            Command::DiffersFromPattern { capture, seed, from } => {
                let mut capture = self.captures.take(capture)?;
                let right = content::bytes(seed, from + capture.size);
                let pairs = capture.bytes().iter().zip(&right[from..]);
                let wrong = pairs.filter(|(byte, right)| byte != right).count();
                (Reply::Number(wrong as u64), None)
            }

            Command::AllocateHost(size) => {
                (Reply::Number(raw::allocate_host(self.context()?, size).map_err(nonsense)?), None)
            }
            Command::FreeHost(start) => {
                raw::free_host(self.context()?, start).map_err(nonsense)?;
                DONE
            }

            Command::Event { shared } => {
                let context = self.context()?;
                let event = if shared { Event::new_shared(context) } else { Event::new(context) }?;
                self.events.add(event)
            }
            Command::ManyEvents(limit) => {
                let context = self.context()?.clone();
                let mut stopped = String::new();
                while self.many.len() < limit {
                    match Event::new_shared(&context) {
                        Ok(event) => self.many.push(event),
                        Err(error) => {
                            stopped = error.to_string();
                            break;
                        }
                    }
                }
                (Reply::Text(format!("{} {stopped}", self.many.len())), None)
            }
            Command::DropMany => {
                self.many.clear();
                DONE
            }
            Command::OpenMany { handle, times } => {
                let (context, handle) = (self.context()?.clone(), sixty_four(&handle)?);
                for _ in 0..times {
                    self.many.push(Event::open(&context, &handle)?);
                }
                DONE
            }
            Command::ExportEvent(event) => bytes(&self.events.get(event)?.export()?),
            Command::OpenEvent(handle) => {
                let event = Event::open(self.context()?, &sixty_four(&handle)?)?;
                self.events.add(event)
            }
            Command::Record { event, stream } => {
                self.events.get(event)?.record(self.streams.get(stream)?)?;
                DONE
            }
            Command::RecordContext { event, stream } => {
                self.events.get(event)?.record_context_blocking(self.streams.get(stream)?)?;
                DONE
            }
            Command::Wait { stream, event } => {
                self.streams.get(stream)?.wait(self.events.get(event)?)?;
                DONE
            }
            Command::QueryEvent(event) => ready(self.events.get(event)?.query()?),
            Command::DropEvent(event) => {
                self.events.take(event)?;
                DONE
            }

            Command::Page { words, write } => {
                let mapped = Words::map(only(fds)?, words, write).map_err(nonsense)?;
                let page = timeline::Page::new(self.context()?, Arc::new(mapped), access(write))?;
                self.pages.add(page)
            }
            Command::WriteWord { page, word, value, stream } => {
                self.streams.get(stream)?.write_word(self.word(page, word)?, value)?;
                DONE
            }
            Command::WriteWords { page, values, stream } => {
                let writes: Vec<_> = values
                    .into_iter()
                    .map(|(word, value)| Ok((self.word(page, word)?, value)))
                    .collect::<Result<_>>()?;
                self.streams.get(stream)?.write_words(&writes)?;
                DONE
            }
            Command::WaitWord { page, word, value, stream } => {
                self.streams.get(stream)?.wait_word(self.word(page, word)?, value)?;
                DONE
            }
            Command::DropPage(page) => {
                let begin = Instant::now();
                self.pages.take(page)?;
                (Reply::Number(u64::try_from(begin.elapsed().as_micros()).unwrap_or(u64::MAX)), None)
            }
        })
    }

    fn open(&mut self, device: usize, primary: bool) -> Result<(Reply, Option<OwnedFd>)> {
        let device = Device::get(device)?;
        let context = if primary {
            Context::primary(&device)?
        } else {
            let owner = Context::create(&device)?;
            // SAFETY: the owner passed along keeps the context alive.
            unsafe { Context::handed_in(owner.as_raw(), owner.clone()) }?
        };
        self.contexts.push(context);
        self.chosen = self.contexts.len() - 1;
        Ok((Reply::Object(self.chosen), None))
    }

    fn supports(&self, name: &str) -> Result<(Reply, Option<OwnedFd>)> {
        let device = self.context()?.device();
        match name {
            "vmm" => memory::supports(memory::Kind::Vmm, device)?,
            "pool" => memory::supports(memory::Kind::Pool, device)?,
            "legacy" => memory::supports(memory::Kind::Legacy, device)?,
            "event" => fence::supports(fence::Kind::Event, device)?,
            "timeline" => fence::supports(fence::Kind::Timeline, device)?,
            _ => return Err(nonsense("unknown kind")),
        }
        Ok(DONE)
    }

    fn wait_for(&self, stream: Id, patience: Duration) -> Result<(Reply, Option<OwnedFd>)> {
        let stream = self.streams.get(stream)?;
        let begin = Instant::now();
        loop {
            let status = stream.query()?;
            if status.is_ready() || begin.elapsed() >= patience {
                return Ok(ready(status));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    fn allocate(&self, source: Source, size: usize, stream: Id) -> Result<Memory> {
        let context = self.context()?;
        Ok(match source {
            Source::Vmm => Memory::Vmm(vmm::Allocation::new(context, size)?),
            Source::Legacy => Memory::Legacy(legacy::Allocation::new(context, size)?),
            Source::Pool(pool) => match self.pools.get(pool)? {
                SomePool::Own(pool) => Memory::Pool(pool.allocate(size, self.streams.get(stream)?)?),
                SomePool::Imported(_) => return Err(nonsense("an imported pool cannot allocate")),
            },
        })
    }

    fn import(
        &self,
        source: Source,
        token: &[u8],
        size: usize,
        write: bool,
        fds: Vec<OwnedFd>,
    ) -> Result<Memory> {
        let context = self.context()?;
        Ok(match source {
            Source::Vmm => {
                Memory::VmmImport(vmm::Import::new(context, only(fds)?.as_fd(), size, access(write))?)
            }
            Source::Legacy => Memory::LegacyImport(legacy::Import::new(context, &sixty_four(token)?)?),
            Source::Pool(pool) => match self.pools.get(pool)? {
                SomePool::Imported(pool) => Memory::PoolImport(pool.import(&sixty_four(token)?)?),
                SomePool::Own(_) => return Err(nonsense("a pool of this process cannot import")),
            },
        })
    }

    fn hold(&mut self, stream: Id) -> Result<()> {
        let (sender, receiver) = mpsc::channel::<()>();
        self.streams.get(stream)?.call(move || _ = receiver.recv())?;
        self.held.push(sender);
        Ok(())
    }

    fn hold_on_thread(&mut self) -> Result<(Reply, Option<OwnedFd>)> {
        let (sender, receiver) = mpsc::channel::<()>();
        let context = self.context()?.clone();
        let thread = std::thread::spawn(move || {
            let own = raw::stream(&context, raw::Kind::PerThread).map_err(nonsense)?;
            let status = own.query()?;
            own.call(move || _ = receiver.recv())?;
            Ok(ready(status))
        });
        self.held.push(sender);
        thread.join().map_err(|_| nonsense("the thread panicked"))?
    }

    /// Fills scratch memory repeatedly, for about `us` of GPU time.
    fn load(&mut self, stream: Id, us: u64) -> Result<()> {
        if self.load.is_none() {
            self.load = Some(self.calibrate()?);
        }
        let Some((memory, step)) = &self.load else { return Err(nonsense("the load was not measured")) };
        let stream = self.streams.get(stream)?;
        for _ in 0..us.div_ceil(100) {
            // SAFETY: the memory stays until the process ends.
            unsafe { stream.fill(memory.ptr(), 0, *step) }?;
        }
        Ok(())
    }

    /// Exits the process normally while threads create, query and destroy events.
    fn exit(&self, threads: usize) -> Result<(Reply, Option<OwnedFd>)> {
        let context = self.context()?;
        let (begin, begun) = std::sync::mpsc::channel();
        for _ in 0..threads {
            let (stream, begin) = (Stream::new(context)?, begin.clone());
            std::thread::spawn(move || {
                while let Ok(event) = Event::new_shared(stream.context()) {
                    let _ = event.record(&stream);
                    let _ = event.query();
                    let _ = begin.send(());
                }
                // As a thread of an app does.
                loop {
                    std::thread::park();
                }
            });
        }
        begun.iter().take(20 * threads).for_each(drop);
        std::process::exit(0)
    }

    /// Queues a write to memory that is mapped for reading: by a kernel or, on the simulated
    /// driver, which has none, by a copy, which fails there as a kernel does.
    fn spoil(&mut self, memory: Id, stream: Id) -> Result<String> {
        let to = self.memories.get(memory)?.ptr();
        // Prepare both before the stream is stalled: loading and allocating may wait for the GPU.
        let kernel = kernel::Store::load(self.streams.get(stream)?);
        let source = vmm::Allocation::new(self.context()?, 4096)?;
        let from = source.ptr();
        self.hold(stream)?;
        let stream = self.streams.get(stream)?;
        let write = match kernel {
            Ok(kernel) => {
                // SAFETY: see the header of the file.
                unsafe { kernel.launch(stream, to) }.map_err(nonsense)?;
                "a kernel".to_owned()
            }
            Err(why_not) => {
                // SAFETY: see the header of the file.
                unsafe { stream.copy(to, from, 4096) }?;
                format!("a copy, since kernels are not available ({why_not})")
            }
        };
        self.memories.add(Memory::Vmm(source));
        Ok(write)
    }

    fn calibrate(&self) -> Result<(vmm::Allocation, usize)> {
        const MOST: usize = 512 << 20;
        let context = self.context()?;
        let memory = vmm::Allocation::new(context, MOST)?;
        let stream = Stream::new(context)?;
        let mut step = 64 << 10;
        loop {
            let begin = Instant::now();
            for _ in 0..8 {
                // SAFETY: the memory outlives the loop, which waits for the stream.
                unsafe { stream.fill(memory.ptr(), 0, step) }?;
            }
            stream.synchronize()?;
            if begin.elapsed() >= Duration::from_micros(800) || step == MOST {
                return Ok((memory, step));
            }
            step *= 2;
        }
    }
}
