// SPDX-License-Identifier: MIT OR Apache-2.0

//! A kernel that reads frames, as an application's kernel does.
//!
//! # Safety
//!
//! The kernel reads the mapped memory of a buffer, which stays valid until the kernel is done, and
//! writes to a word of its own.
#![allow(unsafe_code)]

use anyhow::{Context as _, Result, anyhow};
use frameshare_cuda::{DevicePtr, context::Context, memory::vmm, stream::Stream};
use frameshare_gpu_harness::kernel::Kernel;
use gst_cuda::memory::Memory;
use std::{
    ffi::CStr,
    sync::{Arc, mpsc},
    thread,
};

/// Reads `count` words and combines them by XOR, so that no compiler removes the loads. Turing is
/// the oldest architecture that CUDA 13 supports.
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

/// Kernels for the frames of one context.
pub struct Kernels {
    /// Loaded at the first frame.
    loaded: Option<Read>,
    /// Receives frames after they were read, if they must be kept until then.
    done: Option<mpsc::Sender<gst::Buffer>>,
}

/// The kernel, loaded into the context of its frames.
struct Read {
    kernel: Kernel,
    context: Arc<Context>,
    sum: vmm::Allocation,
}

impl Kernels {
    /// `keeps_frames` is false if the release of a frame waits for the GPU by itself.
    pub fn new(keeps_frames: bool) -> Self {
        let done = keeps_frames.then(|| {
            let (done, frames) = mpsc::channel::<gst::Buffer>();
            thread::spawn(move || frames.into_iter().for_each(drop));
            done
        });
        Self { loaded: None, done }
    }

    /// Launches the kernel on the stream that the frame's memory names, as GStreamer's elements do.
    /// `then` is called on a driver thread, where CUDA calls are not allowed.
    pub fn read(&mut self, frame: &gst::Buffer, then: impl FnOnce() + Send + 'static) -> Result<()> {
        let loaded = match &mut self.loaded {
            Some(loaded) => loaded,
            none => none.insert(Read::load(frame)?),
        };
        let kept = self.done.as_ref().map(|done| (done.clone(), frame.clone()));
        loaded.read(frame, move || {
            then();
            // Not dropped here: releasing a frame calls CUDA.
            if let Some((done, frame)) = kept {
                let _ = done.send(frame);
            }
        })
    }
}

impl Read {
    /// Loads the kernel into the context of the frame.
    fn load(frame: &gst::BufferRef) -> Result<Self> {
        gst_cuda::load()?;
        let memory = memory(frame)?;
        let owner = memory.context();
        // SAFETY: the handle is that of a valid context, which its owner keeps alive.
        let context = unsafe { Context::handed_in(owner.handle(), owner.clone()) }?;
        let stream = Stream::new(&context)?;
        let kernel =
            Kernel::load(&stream, PTX, c"read").map_err(|why| anyhow!("no kernel can be loaded: {why}"))?;
        Ok(Self { kernel, sum: vmm::Allocation::new(&context, size_of::<u32>())?, context })
    }

    /// The frame's memory must stay valid until the stream has reached the end of the kernel.
    fn read(&self, frame: &gst::BufferRef, then: impl FnOnce() + Send + 'static) -> Result<()> {
        let memory = memory(frame)?;
        let mapped = memory.map().context("a frame that cannot be mapped")?;
        let named = memory.stream();
        let raw = named.as_ref().map_or(std::ptr::null_mut(), gst_cuda::stream::Stream::handle);
        // SAFETY: a stream of the context, or its NULL stream, kept alive by `named`.
        let stream = unsafe { Stream::handed_in(&self.context, raw, named) };
        let words = (mapped.size() / size_of::<u32>()) as u64;
        let parameters: [DevicePtr; 3] = [mapped.address(), words, self.sum.ptr()];
        // SAFETY: the kernel has these three parameters, and the caller keeps the memory valid.
        unsafe { self.kernel.launch(&stream, 1024, 256, parameters) }.map_err(|why| anyhow!(why))?;
        Ok(stream.call(then)?)
    }
}

fn memory(frame: &gst::BufferRef) -> Result<Memory<'_>> {
    Memory::of(frame.peek_memory(0)).context("a frame that is not in GPU memory")
}
