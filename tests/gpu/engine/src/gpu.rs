// SPDX-License-Identifier: MIT OR Apache-2.0

//! CUDA contexts and streams of a peer, and the operations on frames.
//!
//! # Safety
//! This file passes addresses to streams. The engine keeps the memory of slots and frames until the
//! fences of the work on it are signaled; the suites test exactly that. A case that omits a fence,
//! or frees memory under pending work, does so to observe the result.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use frameshare::memory::Address;
use frameshare::{MemoryKind, exporter::Slot, reader::Frame};
use frameshare_cuda::DevicePtr;
use frameshare_cuda::context::Context;
use frameshare_cuda::device::Device;
use frameshare_cuda::event::Event;
use frameshare_cuda::host::{Access, Registration};
use frameshare_cuda::memory::{legacy, pool, vmm};
use frameshare_cuda::stream::Stream;
use frameshare_gpu_harness::kernel::Kernel;
use frameshare_gpu_harness::random::Random;

use crate::job::Slow;

/// GPU resources of a peer: context and stream.
pub struct Gpu {
    pub context: Arc<Context>,
    /// Stream that writes or reads frames.
    pub stream: Arc<Stream>,
}

/// Returns the primary context of a device. The context is cached: creating it takes longer than
/// most commands.
pub fn context(device: usize) -> Result<Arc<Context>> {
    static KEPT: Mutex<BTreeMap<usize, Arc<Context>>> = Mutex::new(BTreeMap::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let context = match kept.get(&device) {
        Some(context) => context.clone(),
        None => Context::primary(&Device::get(device)?)?,
    };
    kept.insert(device, context.clone());
    Ok(context)
}

impl Gpu {
    /// Creates a stream in the primary context of a device.
    pub fn open(device: usize) -> Result<Gpu> {
        Gpu::with(context(device)?)
    }

    /// Creates a stream in a context.
    pub fn with(context: Arc<Context>) -> Result<Gpu> {
        Ok(Gpu { stream: Arc::new(Stream::new(&context)?), context })
    }

    /// Creates another context on the same device.
    pub fn another(&self) -> Result<Gpu> {
        Gpu::with(Context::create(self.context.device())?)
    }

    /// Creates a stream that is not ordered after later work on this one's stream.
    pub fn another_stream(&self) -> Result<Stream> {
        Ok(Stream::new(&self.context)?)
    }

    /// Returns a wrapper of a stream that does not keep it alive.
    pub fn raw_handle(stream: &Stream) -> Stream {
        // SAFETY: the stream belongs to this context. That it is destroyed before the wrapper is
        // not used again but for the end of its work, which the case tests.
        unsafe { Stream::handed_in(stream.context(), stream.as_raw(), ()) }
    }

    /// Returns a second wrapper of the stream, as for a stream that comes from other code.
    pub fn another_handle(&self) -> Stream {
        // SAFETY: the stream belongs to this context, and the passed `Arc` keeps it alive.
        unsafe { Stream::handed_in(&self.context, self.stream.as_raw(), self.stream.clone()) }
    }
}

/// Registers the memory of a host slot, which is free again, with the driver.
pub fn register(gpu: &Gpu, slot: Slot) -> Result<Registration> {
    let (start, size) = (slot.as_ptr().context("a slot in GPU memory")?, usize::try_from(slot.size())?);
    // The exporter keeps the memory of its slots while the format and the size stay.
    drop(slot);
    // SAFETY: as the case promises, the exporter lives longer. Nothing is accessed through the
    // registration.
    Ok(unsafe { Registration::new(&gpu.context, start, size, Access::ReadWrite, ()) }?)
}

/// Fills memory of a kind with a pattern that no frame contains, and frees it: a driver may hand it
/// out again unchanged.
pub fn soil(gpu: &Gpu, kind: MemoryKind) -> Result<()> {
    const PIECE: usize = 2 << 20;
    match kind {
        MemoryKind::Vmm => {
            soil_each(gpu, || vmm::Allocation::new(&gpu.context, PIECE), |piece| (piece.ptr(), piece.size()))
        }
        MemoryKind::Legacy => soil_each(
            gpu,
            || legacy::Allocation::new(&gpu.context, PIECE),
            |piece| (piece.ptr(), piece.size()),
        ),
        MemoryKind::Pool => {
            let pool = pool::Pool::new(&gpu.context)?;
            soil_each(gpu, || pool.allocate(PIECE, &gpu.stream), |piece| (piece.ptr(), piece.size()))
        }
        _ => bail!("cannot fill {kind} memory with the GPU"),
    }
}

fn soil_each<T>(
    gpu: &Gpu,
    allocate: impl Fn() -> frameshare_cuda::Result<T>,
    place: impl Fn(&T) -> (DevicePtr, usize),
) -> Result<()> {
    const PIECES: usize = 64;
    let pieces = (0..PIECES).map(|_| allocate()).collect::<Result<Vec<_>, _>>()?;
    for (start, size) in pieces.iter().map(place) {
        fill(start, size as u64, u8::MAX, &gpu.stream)?;
    }
    Ok(gpu.stream.synchronize()?)
}

/// Senders that resume the stalled streams of this process.
static STALLED: Mutex<Vec<mpsc::Sender<()>>> = Mutex::new(Vec::new());

/// Stalls a stream until [`resume`], or for `us` µs.
pub fn stall(stream: &Stream, us: u64) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    STALLED.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    Ok(stream.call(move || {
        let _ = receiver.recv_timeout(Duration::from_micros(us));
    })?)
}

/// Resumes all stalled streams of this process.
pub fn resume() {
    STALLED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Delays a stream.
fn delay(stream: &Stream, us: u64) -> Result<()> {
    Ok(stream.call(move || std::thread::sleep(Duration::from_micros(us)))?)
}

/// Waits until all work of a context is complete.
pub fn await_idle(gpu: &Gpu, patience: Duration) -> Result<()> {
    let (done, until) = (Event::new(&gpu.context)?, Instant::now() + patience);
    done.record_context()?;
    while !done.query()?.is_ready() {
        ensure!(Instant::now() < until, "work of the context does not complete");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Delays a stream as configured.
pub fn slow(stream: &Stream, how: Slow, random: &mut Random) -> Result<()> {
    match how {
        Slow::Never | Slow::Always(0) => Ok(()),
        Slow::Always(us) => delay(stream, us),
        Slow::Sometimes(most) => {
            if random.below(8) == 0 {
                delay(stream, random.below(most.max(1)))?;
            }
            Ok(())
        }
    }
}

/// Returns the byte that fills a frame. It is neither 0, the value of fresh memory, nor 255. Its
/// period is a prime, so the slots of a generation never hold equal bytes by chance.
pub fn byte_of(sequence: u64) -> u8 {
    1 + (sequence % 251) as u8
}

/// Returns an address in GPU memory.
pub fn device(address: Address) -> Result<DevicePtr> {
    match address {
        Address::Device(pointer) => Ok(pointer),
        Address::Host(_) => bail!("the frame is in host memory"),
    }
}

/// Fills the frame of a slot, on the GPU in two halves, so that an unsynchronized reader can
/// observe a torn frame.
pub fn write(slot: &Slot, offset: u64, size: u64, sequence: u64, stream: &Stream) -> Result<()> {
    ensure!(offset + size <= slot.size(), "a frame of {size} bytes does not fit a slot of {}", slot.size());
    if let Some(start) = slot.as_ptr() {
        // SAFETY: the size was just checked, and an acquired slot is written by the caller alone.
        unsafe { start.add(offset as usize).write_bytes(byte_of(sequence), size as usize) };
        return Ok(());
    }
    let start = device(slot.address())? + offset;
    fill(start, size, byte_of(sequence), stream)
}

/// Fills device memory in two halves.
pub fn fill(start: DevicePtr, size: u64, byte: u8, stream: &Stream) -> Result<()> {
    let half = size / 2;
    for (start, size) in [(start, half), (start + half, size - half)] {
        // SAFETY: see the header of the file.
        unsafe { stream.fill(start, byte, size as usize) }?;
    }
    Ok(())
}

/// Copies a frame into a slot.
pub fn copy(frame: &Frame, from: DevicePtr, slot: &Slot, stream: &Stream) -> Result<()> {
    ensure!(frame.len() as u64 <= slot.size(), "the frame exceeds the slot");
    // SAFETY: see the header of the file.
    unsafe { stream.copy(device(slot.address())?, from, frame.len()) }?;
    Ok(())
}

/// Device memory of a peer to copy from or to.
pub struct Scratch(vmm::Allocation);

impl Scratch {
    pub fn new(gpu: &Gpu, size: u64) -> Result<Scratch> {
        let scratch = Scratch(vmm::Allocation::new(&gpu.context, size as usize)?);
        fill(scratch.0.ptr(), size, 0, &gpu.stream)?;
        gpu.stream.synchronize()?;
        Ok(scratch)
    }

    pub fn size(&self) -> u64 {
        self.0.size() as u64
    }

    /// Keeps a stream busy.
    pub fn fill(&self, stream: &Stream) -> Result<()> {
        fill(self.0.ptr(), self.size(), 0, stream)
    }

    /// Copies a full frame from this memory.
    pub fn copy_to(&self, slot: &Slot, size: u64, stream: &Stream) -> Result<()> {
        ensure!(
            size <= slot.size() && size <= self.size(),
            "the copy exceeds the slot or the scratch memory"
        );
        // SAFETY: see the header of the file.
        unsafe { stream.copy(device(slot.address())?, self.0.ptr(), size as usize) }?;
        Ok(())
    }

    /// Copies some bytes of a frame to this memory.
    pub fn touch(&self, frame: &Frame, from: DevicePtr, stream: &Stream) -> Result<()> {
        // SAFETY: see the header of the file.
        unsafe { stream.copy(self.0.ptr(), from, frame.len().min(64)) }?;
        Ok(())
    }
}

/// Downloads a frame from its address to `to`, which must have room for it.
///
/// # Safety
/// `to` must stay valid and must not be accessed until the stream has completed the download.
pub unsafe fn download(frame: &Frame, from: DevicePtr, to: *mut u8, stream: &Stream) -> Result<()> {
    // SAFETY: the caller guarantees `to`; for the frame see the header of the file.
    unsafe { stream.download(to, from, frame.len()) }?;
    Ok(())
}

/// Kernel that runs for the given number of ns.
const SPIN: &CStr = c"
.version 6.4
.target sm_75
.address_size 64
.visible .entry spin(.param .u64 duration)
{
    .reg .b64 %duration, %begin, %now;
    .reg .pred %goes_on;
    ld.param.u64 %duration, [duration];
    mov.u64 %begin, %globaltimer;
again:
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %begin;
    setp.lt.u64 %goes_on, %now, %duration;
    @%goes_on bra again;
    ret;
}
";

/// Queues kernels of `ms` each. The simulated driver has none.
pub fn long_kernels(stream: &Stream, ms: u64, count: u32) -> Result<()> {
    let kernel = Kernel::load(stream, SPIN, c"spin").map_err(|error| anyhow!(error))?;
    for _ in 0..count {
        // SAFETY: the kernel takes one number of eight bytes and accesses no memory.
        unsafe { kernel.launch(stream, 1, 1, [ms * 1_000_000]) }.map_err(|error| anyhow!(error))?;
    }
    Ok(())
}

/// Loses a context by freeing memory under queued work. (Real drivers refuse in advance to write a
/// frame that was imported for reading, and other kinds of memory would permit the write.)
pub fn lose_context(gpu: &Gpu) -> Result<()> {
    let victim =
        vmm::Allocation::new(&gpu.context, 64 << 20).context("cannot allocate memory to free under work")?;
    stall(&gpu.stream, 5_000_000)?;
    for _ in 0..64 {
        // SAFETY: see the header of the file.
        unsafe { gpu.stream.fill(victim.ptr(), 1, victim.size()) }?;
    }
    drop(victim);
    resume();
    for _ in 0..200 {
        if gpu.stream.query().is_err_and(|error| error.is_sticky()) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("this driver waits for pending work before it frees memory: cannot lose the context")
}
