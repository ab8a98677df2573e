//! A kernel that reads frames, as an application's would.
//!
//! # Safety
//!
//! It reads memory that a buffer maps, which nobody takes back until it has, and adds to a word of its own.
#![allow(unsafe_code)]

use anyhow::{Context as _, Result, anyhow};
use frameshare::cuda::{DevicePtr, context::Context, memory::vmm, stream::Stream};
use frameshare_gpu_harness::kernel::Kernel;
use gst_cuda::memory::Memory;
use std::{
    ffi::CStr,
    sync::{Arc, mpsc},
    thread,
};

/// Reads `count` words, and adds them up by XOR, so that no compiler finds that nobody wants them. Turing is the oldest
/// architecture that CUDA 13 knows.
const PTX: &CStr = c"
.version 6.4
.target sm_75
.address_size 64
.visible .entry read(.param .u64 frame, .param .u64 count, .param .u64 sum)
{
    .reg .pred %over;
    .reg .b32 %block, %threads, %thread, %blocks, %first, %stride, %word, %part;
    .reg .b64 %frame, %count, %sum, %at, %step, %place;
    ld.param.u64 %frame, [frame];
    cvta.to.global.u64 %frame, %frame;
    ld.param.u64 %count, [count];
    ld.param.u64 %sum, [sum];
    cvta.to.global.u64 %sum, %sum;
    mov.u32 %block, %ctaid.x;
    mov.u32 %threads, %ntid.x;
    mov.u32 %thread, %tid.x;
    mov.u32 %blocks, %nctaid.x;
    mad.lo.u32 %first, %block, %threads, %thread;
    mul.lo.u32 %stride, %blocks, %threads;
    cvt.u64.u32 %at, %first;
    cvt.u64.u32 %step, %stride;
    mov.u32 %part, 0;
next:
    setp.ge.u64 %over, %at, %count;
    @%over bra done;
    shl.b64 %place, %at, 2;
    add.u64 %place, %frame, %place;
    ld.global.u32 %word, [%place];
    xor.b32 %part, %part, %word;
    add.u64 %at, %at, %step;
    bra next;
done:
    red.global.xor.b32 [%sum], %part;
    ret;
}
";

/// Reads frames of one context.
pub struct Kernels {
    /// Loaded with the first frame.
    loaded: Option<Read>,
    /// Takes frames that have been read, where they are to be kept until then.
    done: Option<mpsc::Sender<gst::Buffer>>,
}

/// The kernel, in the context of the frames that it reads.
struct Read {
    kernel: Kernel,
    context: Arc<Context>,
    sum: vmm::Allocation,
}

impl Kernels {
    /// For frames whose release waits for the GPU by itself, or that are kept until they have been read.
    pub fn new(keeps_frames: bool) -> Self {
        let done = keeps_frames.then(|| {
            let (done, frames) = mpsc::channel::<gst::Buffer>();
            thread::spawn(move || frames.into_iter().for_each(drop));
            done
        });
        Self { loaded: None, done }
    }

    /// Has the whole frame read on the stream that its memory names, as elements of GStreamer do, and `then` called on a
    /// thread of the driver's, which may not call CUDA.
    pub fn read(&mut self, frame: &gst::Buffer, then: impl FnOnce() + Send + 'static) -> Result<()> {
        let loaded = match &mut self.loaded {
            Some(loaded) => loaded,
            none => none.insert(Read::load(frame)?),
        };
        let kept = self.done.as_ref().map(|done| (done.clone(), frame.clone()));
        loaded.read(frame, move || {
            then();
            // Not here: to give a frame back calls CUDA.
            if let Some((done, frame)) = kept {
                let _ = done.send(frame);
            }
        })
    }
}

impl Read {
    /// Loads it into the context of this frame.
    fn load(frame: &gst::BufferRef) -> Result<Self> {
        gst_cuda::load()?;
        let memory = memory(frame)?;
        let owner = memory.context();
        // SAFETY: the handle of a context that its owner keeps.
        let context = unsafe { Context::handed_in(owner.handle(), owner.clone()) }?;
        let stream = Stream::new(&context)?;
        let kernel =
            Kernel::load(&stream, PTX, c"read").map_err(|why| anyhow!("no kernel can be loaded: {why}"))?;
        Ok(Self { kernel, sum: vmm::Allocation::new(&context, size_of::<u32>())?, context })
    }

    /// The frame's memory has to stay as it is until the stream has come so far.
    fn read(&self, frame: &gst::BufferRef, then: impl FnOnce() + Send + 'static) -> Result<()> {
        let memory = memory(frame)?;
        let mapped = memory.map().context("a frame that cannot be mapped")?;
        let named = memory.stream();
        let raw = named.as_ref().map_or(std::ptr::null_mut(), gst_cuda::stream::Stream::handle);
        // SAFETY: a stream of the context, or its NULL stream, which is held meanwhile.
        let stream = unsafe { Stream::handed_in(&self.context, raw, named) };
        let words = (mapped.size() / size_of::<u32>()) as u64;
        let parameters: [DevicePtr; 3] = [mapped.address(), words, self.sum.ptr()];
        // SAFETY: the kernel takes these three; the caller sees to it that the memory stays as it is.
        unsafe { self.kernel.launch(&stream, 1024, 256, parameters) }.map_err(|why| anyhow!(why))?;
        Ok(stream.call(then)?)
    }
}

fn memory(frame: &gst::BufferRef) -> Result<Memory<'_>> {
    Memory::of(frame.peek_memory(0)).context("a frame that is not in GPU memory")
}
