//! A reader that copies frames on a stream which its pipeline knows nothing of, and looks at the copies later.
//!
//! # Safety
//! Addresses of memory are handed to a stream and let go before it got there. Whether the memory stays as it is until then
//! is what is tested; the copies live until the stream is done.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare::cuda::{context::Context, device::Device, memory::vmm, stream::Stream};
use gst::prelude::*;
use gst_cuda::memory::Memory;
use gst_video::VideoInfo;
use gstframeshare::FrameshareMeta;

use crate::job::{ReadApart, Received, Side};
use crate::picture::checksum;
use crate::playing::{error_of, parse, planes_of};

/// How long it waits for its frames.
const PATIENCE: Duration = Duration::from_secs(60);

/// Copies, the last of which may not be made yet.
struct Apart {
    stream: Stream,
    /// Where the frames of one job go, one behind the other.
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
    /// With room for so many frames like this one.
    fn new(job: &ReadApart, memory: Memory<'_>) -> Result<Apart> {
        let context = match job.side {
            Side::Same => {
                let context = memory.context();
                // SAFETY: the context goes along.
                unsafe { Context::handed_in(context.handle(), context.clone())? }
            }
            Side::OtherNamed | Side::OtherHidden => {
                let device = usize::try_from(memory.context().device())?;
                Context::create(&Device::get(device)?)?
            }
        };
        let size = memory.map().context("a frame cannot be mapped")?.size();
        let place = vmm::Allocation::new(&context, size * usize::try_from(job.frames)?)?;
        Ok(Apart { stream: Stream::new(&context)?, place, frames: Vec::new() })
    }

    /// Puts a copy of a frame that is written on the stream, late.
    fn copy(&mut self, job: &ReadApart, sample: &gst::Sample) -> Result<()> {
        let buffer = sample.buffer().context("no buffer")?;
        let memory = Memory::of(buffer.peek_memory(0)).context("a frame that is not on the GPU")?;
        memory.sync();
        let mapped = memory.map().context("a frame cannot be mapped")?;
        let start = self.frames.last().map_or(0, |last| last.start + last.size);
        ensure!(start + mapped.size() <= self.place.size(), "no room for another frame");
        if job.slow_us > 0 {
            let pause = Duration::from_micros(job.slow_us);
            self.stream.call(move || std::thread::sleep(pause))?;
        }
        // SAFETY: the copy has room there, and the frame so many bytes; see the head of the file.
        unsafe { self.stream.copy(self.place.ptr() + start as u64, mapped.address(), mapped.size())? };
        if job.side == Side::OtherNamed {
            // SAFETY: the stream lives until the pipeline is gone, with all its frames.
            let named = unsafe { FrameshareMeta::used_on(buffer, self.stream.as_raw()) };
            // Nothing can be named for a copy of the source's.
            if !named {
                self.stream.synchronize()?;
            }
        }
        let meta = buffer.meta::<gst_video::VideoMeta>().context("no layout")?;
        self.frames.push(Copied {
            sequence: buffer.meta::<FrameshareMeta>().context("no FrameshareMeta")?.sequence(),
            start,
            size: mapped.size(),
            info: VideoInfo::from_caps(sample.caps().context("no caps")?)?,
            planes: planes_of(meta.offset(), meta.stride()),
        });
        Ok(())
    }

    /// The checksum of each copy.
    fn look(&self) -> Result<Vec<(u64, u64)>> {
        self.stream.synchronize()?;
        let mut bytes = Vec::new();
        let look = |frame: &Copied| {
            bytes.resize(frame.size, 0);
            // SAFETY: a copy lies there, and the bytes are looked at when the stream is done.
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
    let out = pipeline.by_name("out").context("there is no out")?;
    let out: gst_app::AppSink = out.downcast().ok().context("out is no appsink")?;
    out.set_property("sync", false);
    out.set_property("enable-last-sample", false);
    let apart = Arc::new(Mutex::new(None::<Apart>));
    let (sender, done) = mpsc::channel();
    // On the thread that pushes the frames, so that each has gone before the next comes.
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
                    let memory = sample.buffer().context("no buffer")?.peek_memory(0);
                    none.insert(Apart::new(&asked, Memory::of(memory).context("not on the GPU")?)?)
                }
            };
            apart.copy(&asked, &sample)?;
            Ok(apart.frames.len() == count)
        };
        match copy() {
            Ok(false) => Ok(gst::FlowSuccess::Ok),
            // Whoever waits may have given up.
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
            Err(_) => ensure!(begin.elapsed() < PATIENCE, "the frames do not come"),
        }
        if let Some(error) = error_of(&pipeline) {
            anyhow::bail!("{error}");
        }
    }
    // Before the pipeline stops: it unmaps what nobody is known to read.
    let frames = {
        let apart = apart.lock().unwrap_or_else(PoisonError::into_inner);
        apart.as_ref().context("no copies")?.look()?
    };
    let mut received = Received { on_gpu: frames.len() as u64, frames, ..Received::default() };
    received.count(&pipeline);
    pipeline.set_state(gst::State::Null)?;
    Ok(received)
}
