// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reader that copies frames on a stream unknown to its pipeline, and checks the copies later.
//!
//! # Safety
//! Memory addresses are passed to a stream, and the memory is released before the stream reaches
//! the copy. The tests check whether the memory stays unchanged until then. The copies live until
//! the stream is done.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare_cuda::{context::Context, device::Device, memory::vmm, stream::Stream};
use gst::prelude::*;
use gst_cuda::memory::Memory;
use gst_video::VideoInfo;
use gstframeshare::FrameshareMeta;

use crate::job::{ReadApart, Received, Side};
use crate::picture::checksum;
use crate::playing::{error_of, parse, planes_of};

/// Time limit for the arrival of the frames.
const PATIENCE: Duration = Duration::from_secs(60);

/// Copies of frames, the last of which may be pending.
struct Apart {
    stream: Stream,
    /// Memory for the copies of one job, in sequence.
    place: vmm::Allocation,
    frames: Vec<Copied>,
}

struct Copied {
    sequence: u64,
    start: usize,
    size: usize,
    info: VideoInfo,
    planes: Vec<(usize, usize)>,
}

impl Apart {
    /// Allocates room for all frames of the job, of the size of this one.
    fn new(job: &ReadApart, memory: Memory<'_>) -> Result<Apart> {
        let context = match job.side {
            Side::Same => {
                let context = memory.context();
                // SAFETY: the context is passed along and stays alive.
                unsafe { Context::handed_in(context.handle(), context.clone())? }
            }
            Side::OtherNamed | Side::OtherHidden => {
                let device = usize::try_from(memory.context().device())?;
                Context::create(&Device::get(device)?)?
            }
        };
        let size = memory.map().context("cannot map the frame")?.size();
        let place = vmm::Allocation::new(&context, size * usize::try_from(job.frames)?)?;
        Ok(Apart { stream: Stream::new(&context)?, place, frames: Vec::new() })
    }

    /// Queues a delayed copy of a written frame on the stream.
    fn copy(&mut self, job: &ReadApart, sample: &gst::Sample) -> Result<()> {
        let buffer = sample.buffer().context("the sample has no buffer")?;
        let memory = Memory::of(buffer.peek_memory(0)).context("the frame is not in CUDA memory")?;
        memory.sync();
        let mapped = memory.map().context("cannot map the frame")?;
        let start = self.frames.last().map_or(0, |last| last.start + last.size);
        ensure!(start + mapped.size() <= self.place.size(), "the frame exceeds the memory for copies");
        if job.slow_us > 0 {
            let pause = Duration::from_micros(job.slow_us);
            self.stream.call(move || std::thread::sleep(pause))?;
        }
        // SAFETY: the destination has room for the copy, and the frame has that many bytes; see the
        // header of the file.
        unsafe { self.stream.copy(self.place.ptr() + start as u64, mapped.address(), mapped.size())? };
        if job.side == Side::OtherNamed {
            // SAFETY: the stream outlives the pipeline and all its frames.
            let named = unsafe { FrameshareMeta::used_on(buffer, self.stream.as_raw()) };
            // A stream cannot be named for a frame that the source copied.
            if !named {
                self.stream.synchronize()?;
            }
        }
        let meta = buffer.meta::<gst_video::VideoMeta>().context("the buffer has no VideoMeta")?;
        self.frames.push(Copied {
            sequence: buffer.meta::<FrameshareMeta>().context("the buffer has no FrameshareMeta")?.sequence(),
            start,
            size: mapped.size(),
            info: VideoInfo::from_caps(sample.caps().context("the sample has no caps")?)?,
            planes: planes_of(meta.offset(), meta.stride()),
        });
        Ok(())
    }

    /// Returns the sequence number and checksum of each copy.
    fn look(&self) -> Result<Vec<(u64, u64)>> {
        self.stream.synchronize()?;
        let mut bytes = Vec::new();
        let look = |frame: &Copied| {
            bytes.resize(frame.size, 0);
            // SAFETY: the copy lies at this address, and the bytes are read after the stream is
            // done.
            unsafe {
                self.stream.download(
                    bytes.as_mut_ptr(),
                    self.place.ptr() + frame.start as u64,
                    frame.size,
                )?;
            }
            self.stream.synchronize()?;
            Ok((frame.sequence, checksum(&bytes, &frame.info, &frame.planes)?))
        };
        self.frames.iter().map(look).collect()
    }
}

/// Reads the first frames of a stream.
pub fn read(job: &ReadApart) -> Result<Received> {
    let pipeline = parse(&job.pipeline)?;
    let out = pipeline.by_name("out").context("the pipeline has no element `out`")?;
    let out: gst_app::AppSink = out.downcast().ok().context("the element `out` is not an appsink")?;
    out.set_property("sync", false);
    out.set_property("enable-last-sample", false);
    let apart = Arc::new(Mutex::new(None::<Apart>));
    let (sender, done) = mpsc::channel();
    // Runs on the streaming thread, so that each frame is released before the next one arrives.
    let taken = apart.clone();
    let (asked, count) = (job.clone(), usize::try_from(job.frames)?);
    let take = move |out: &gst_app::AppSink| {
        let mut apart = taken.lock().unwrap_or_else(PoisonError::into_inner);
        if apart.as_ref().is_some_and(|apart| apart.frames.len() == count) {
            return Err(gst::FlowError::Flushing);
        }
        let mut copy = || -> Result<bool> {
            let sample = out.pull_sample()?;
            let apart = match &mut *apart {
                Some(apart) => apart,
                none => {
                    let memory = sample.buffer().context("the sample has no buffer")?.peek_memory(0);
                    none.insert(Apart::new(
                        &asked,
                        Memory::of(memory).context("the frame is not in CUDA memory")?,
                    )?)
                }
            };
            apart.copy(&asked, &sample)?;
            Ok(apart.frames.len() == count)
        };
        match copy() {
            Ok(false) => Ok(gst::FlowSuccess::Ok),
            // The receiver may have timed out.
            Ok(true) => {
                sender.send(Ok(())).map(|()| gst::FlowSuccess::Ok).map_err(|_| gst::FlowError::Flushing)
            }
            Err(error) => {
                let _ = sender.send(Err(error));
                Err(gst::FlowError::Error)
            }
        }
    };
    out.set_callbacks(gst_app::AppSinkCallbacks::builder().new_sample(take).build());
    pipeline.set_state(gst::State::Playing)?;
    let begin = Instant::now();
    loop {
        match done.recv_timeout(Duration::from_millis(20)) {
            Ok(outcome) => break outcome?,
            Err(_) => ensure!(begin.elapsed() < PATIENCE, "the frames did not arrive in time"),
        }
        if let Some(error) = error_of(&pipeline) {
            anyhow::bail!("{error}");
        }
    }
    // Check before the pipeline stops: stopping unmaps frames that have no known reads.
    let frames = {
        let apart = apart.lock().unwrap_or_else(PoisonError::into_inner);
        apart.as_ref().context("no frame was copied")?.look()?
    };
    let mut received = Received { on_gpu: frames.len() as u64, frames, ..Received::default() };
    received.count(&pipeline);
    pipeline.set_state(gst::State::Null)?;
    Ok(received)
}
