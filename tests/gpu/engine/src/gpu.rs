//! Contexts and streams of a peer, and what it has them do with frames.
//!
//! # Safety
//! This file hands addresses to streams. Slots and frames belong to the engine, which keeps their memory until the fences
//! say that the work on it is done; that it does is what the suites show. A case that leaves a fence out, or takes memory
//! away under work, wants to see what happens.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use frameshare::cuda::DevicePtr;
use frameshare::cuda::context::Context;
use frameshare::cuda::device::Device;
use frameshare::cuda::event::Event;
use frameshare::cuda::memory::{legacy, pool, vmm};
use frameshare::cuda::stream::Stream;
use frameshare::memory::Address;
use frameshare::{MemoryKind, exporter::Slot, reader::Frame};
use frameshare_gpu_harness::random::Random;

use crate::job::Slow;

/// A GPU as a peer uses it.
pub struct Gpu {
    pub context: Arc<Context>,
    /// Frames are written or read on this.
    pub stream: Arc<Stream>,
}

/// The primary context of a device. It is kept: making it again would take longer than most jobs.
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
    /// A stream in the primary context of a device.
    pub fn open(device: usize) -> Result<Gpu> {
        Gpu::with(context(device)?)
    }

    /// A stream in a context.
    pub fn with(context: Arc<Context>) -> Result<Gpu> {
        Ok(Gpu { stream: Arc::new(Stream::new(&context)?), context })
    }

    /// Another context on the same device.
    pub fn another(&self) -> Result<Gpu> {
        Gpu::with(Context::create(self.context.device())?)
    }

    /// A stream that passes what is put on this one's stream meanwhile.
    pub fn another_stream(&self) -> Result<Stream> {
        Ok(Stream::new(&self.context)?)
    }

    /// Another name for the stream, as an app gives it that has it from elsewhere.
    pub fn another_handle(&self) -> Stream {
        // SAFETY: the stream is one of this context, and goes no sooner than the `Arc` that comes along.
        unsafe { Stream::handed_in(&self.context, self.stream.as_raw(), self.stream.clone()) }
    }
}

/// A user without rights.
pub const NOBODY: u32 = 65534;

/// Becomes a user without rights on this thread, which does all the work of a peer. The driver is found before: it may
/// lie where that user cannot look.
pub fn become_nobody() -> Result<()> {
    let nobody = rustix::process::Uid::from_raw(NOBODY);
    Device::all()?;
    rustix::thread::set_thread_uid(nobody).context("becoming another user")
}

/// How many bytes of the device's memory are taken.
pub fn taken_memory(context: &Context) -> Result<u64> {
    let (free, total) = context.memory_left()?;
    Ok(total - free)
}

/// Takes what is left of the device's memory, in pieces that get smaller and smaller.
pub fn take_memory(context: &Arc<Context>) -> Result<Vec<legacy::Allocation>> {
    const SMALLEST: usize = 2 << 20;
    let (mut taken, mut size) = (Vec::new(), 1 << 36);
    while size >= SMALLEST {
        match legacy::Allocation::new(context, size) {
            Ok(piece) => taken.push(piece),
            Err(error) if error.is_out_of_memory() => size /= 2,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(taken)
}

/// Fills memory of a kind with what no frame holds, and gives it back: a driver may hand it out again as it is.
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
        MemoryKind::Host => bail!("host memory is not the GPU's"),
    }
}

fn soil_each<T>(
    gpu: &Gpu,
    allocate: impl Fn() -> frameshare::cuda::Result<T>,
    place: impl Fn(&T) -> (DevicePtr, usize),
) -> Result<()> {
    const PIECES: usize = 64;
    let pieces = (0..PIECES).map(|_| allocate()).collect::<Result<Vec<_>, _>>()?;
    for (start, size) in pieces.iter().map(place) {
        fill(start, size as u64, u8::MAX, &gpu.stream)?;
    }
    Ok(gpu.stream.synchronize()?)
}

/// What the streams of this process that stand still listen to.
static STALLED: Mutex<Vec<mpsc::Sender<()>>> = Mutex::new(Vec::new());

/// Has a stream stand still until it is told to go on, or for so long.
pub fn stall(stream: &Stream, us: u64) -> Result<()> {
    let (sender, receiver) = mpsc::channel();
    STALLED.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    Ok(stream.call(move || {
        let _ = receiver.recv_timeout(Duration::from_micros(us));
    })?)
}

/// Has all streams of this process that stand still go on.
pub fn resume() {
    STALLED.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Has a stream sleep before it goes on.
fn delay(stream: &Stream, us: u64) -> Result<()> {
    Ok(stream.call(move || std::thread::sleep(Duration::from_micros(us)))?)
}

/// Waits until all work of a context is done.
pub fn await_idle(gpu: &Gpu, patience: Duration) -> Result<()> {
    let (done, until) = (Event::new(&gpu.context)?, Instant::now() + patience);
    done.record_context()?;
    while !done.query()?.is_ready() {
        ensure!(Instant::now() < until, "some stream is stuck");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Slows a stream as asked.
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

/// The byte that fills a frame. Fresh memory is zero and this is not, nor is it 255; its period is a prime, so the slots of a
/// generation never hold the same byte by chance.
pub fn byte_of(sequence: u64) -> u8 {
    1 + (sequence % 251) as u8
}

fn device(address: Address) -> Result<DevicePtr> {
    match address {
        Address::Device(pointer) => Ok(pointer),
        Address::Host(_) => bail!("the frame is in host memory"),
    }
}

/// Fills the frame of a slot, on the GPU one half after the other, so that it can be caught in between.
pub fn write(slot: &Slot, offset: u64, size: u64, sequence: u64, stream: &Stream) -> Result<()> {
    ensure!(offset + size <= slot.size(), "a frame of {size} bytes in a slot of {}", slot.size());
    if let Some(start) = slot.as_ptr() {
        // SAFETY: it fits, as was just checked, and a slot that was acquired is the caller's alone to write.
        unsafe { start.add(offset as usize).write_bytes(byte_of(sequence), size as usize) };
        return Ok(());
    }
    let start = device(slot.address())? + offset;
    fill(start, size, byte_of(sequence), stream)
}

/// Fills device memory, one half after the other.
pub fn fill(start: DevicePtr, size: u64, byte: u8, stream: &Stream) -> Result<()> {
    let half = size / 2;
    for (start, size) in [(start, half), (start + half, size - half)] {
        // SAFETY: see the head of the file.
        unsafe { stream.fill(start, byte, size as usize) }?;
    }
    Ok(())
}

/// Memory of a peer's own to copy from or to.
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

    /// Copies all of a frame from here.
    pub fn copy_to(&self, slot: &Slot, size: u64, stream: &Stream) -> Result<()> {
        ensure!(size <= slot.size() && size <= self.size(), "a copy out of bounds");
        // SAFETY: see the head of the file.
        unsafe { stream.copy(device(slot.address())?, self.0.ptr(), size as usize) }?;
        Ok(())
    }

    /// Copies some bytes of a frame to here.
    pub fn touch(&self, frame: &Frame, stream: &Stream) -> Result<()> {
        // SAFETY: see the head of the file.
        unsafe { stream.copy(self.0.ptr(), device(frame.address())?, frame.len().min(64)) }?;
        Ok(())
    }
}

/// Downloads a frame to `to`, which has room for it.
///
/// # Safety
/// `to` must stay valid, and be looked at by nobody, until the stream got there.
pub unsafe fn download(frame: &Frame, to: *mut u8, stream: &Stream) -> Result<()> {
    // SAFETY: the caller vouches for `to`; for the frame see the head of the file.
    unsafe { stream.download(to, device(frame.address())?, frame.len()) }?;
    Ok(())
}

/// Loses a context by taking memory away from under work that is queued on it. (Writing a frame that was imported for
/// reading is refused beforehand by real drivers, and other kinds of memory would let it through.)
pub fn lose_context(gpu: &Gpu) -> Result<()> {
    let victim = vmm::Allocation::new(&gpu.context, 64 << 20).context("memory to take away")?;
    stall(&gpu.stream, 5_000_000)?;
    for _ in 0..64 {
        // SAFETY: see the head of the file.
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
    bail!("this driver waits for work before it takes memory away: no way to lose a context")
}
