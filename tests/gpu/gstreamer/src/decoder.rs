// SPDX-License-Identifier: MIT OR Apache-2.0

//! Imitation of the output side of NVIDIA's decoders.
//!
//! An instance has a few surfaces, and outputs them as memory of a fixed pool that keeps the
//! instance alive. Without a free surface it waits. Surfaces are written on the instance's stream,
//! which does not wait for readers. In front of the element of [`crate::reconfigured`], a change of
//! size clears the surfaces of the size before.
//!
//! # Safety
//!
//! Addresses are passed to a stream. The instance owns their memory, and the written buffers keep
//! the instance alive.
#![allow(unsafe_code)]

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use frameshare_cuda::{context::Context, stream::Stream};
use gst::prelude::*;
use gst_cuda::context::ElementContext;
use gst_cuda::{Reusable, memory};
use gst_video::{VideoFormat, VideoInfo};

use crate::job::Decode;
use crate::picture::byte_of;
use crate::reconfigured::Reconfigured;

/// Time limit for a free surface; longer counts as a stall.
const PATIENCE: Duration = Duration::from_secs(10);

pub struct Decoder {
    source: gst_app::AppSrc,
    reconfigured: Option<Reconfigured>,
    context: gst_cuda::Context,
    engine: Arc<Context>,
    /// Stream that writes frames.
    stream: gst_cuda::Stream,
    writes: Arc<Stream>,
    /// Stream named by memories with stale stream information.
    other: gst_cuda::Stream,
    instance: Option<Arc<Instance>>,
    retired: Vec<Weak<Instance>>,
    next: u64,
}

/// A decoder instance: its surfaces live as long as any buffer refers to one.
struct Instance {
    surfaces: Vec<Surface>,
    info: VideoInfo,
    // Dropped after the objects that refer to it.
    _memory: Vec<gst::Memory>,
}

struct Surface {
    reusable: Reusable,
    address: u64,
}

impl Instance {
    /// Overwrites all surfaces, without regard to those who read them.
    fn clear(&self, writes: &Stream) {
        let clear = || -> frameshare_cuda::Result<()> {
            let _current = writes.context().push()?;
            for surface in &self.surfaces {
                // SAFETY: the surface has this size, and its memory lives as long as the instance,
                // which waits here for the write.
                unsafe { writes.fill(surface.address, 0, self.info.size())? };
            }
            writes.synchronize()
        };
        clear().expect("the driver fills memory");
    }
}

impl Decoder {
    pub fn new(pipeline: &gst::Pipeline) -> Result<Decoder> {
        let source = pipeline.by_name("source").context("the pipeline has no element `source`")?;
        let source: gst_app::AppSrc =
            source.downcast().ok().context("the element `source` is not an appsrc")?;
        source.set_format(gst::Format::Time);
        let reconfigured = pipeline.by_name("decoder").and_then(|element| element.downcast().ok());
        // As an element does: takes the sink's context, or creates one, which the pipeline offers
        // to the sink.
        let context = ElementContext::default().ensure(&source, None).context("cannot get a CUDA context")?;
        let stream = gst_cuda::Stream::new(&context).context("cannot create a CUDA stream")?;
        // SAFETY: both handles live as long as the objects passed along.
        let (engine, writes) = unsafe {
            let engine = Context::handed_in(context.handle(), context.clone())?;
            let writes = Arc::new(Stream::handed_in(&engine, stream.handle(), stream.clone()));
            (engine, writes)
        };
        let other = gst_cuda::Stream::new(&context).context("cannot create a CUDA stream")?;
        Ok(Decoder {
            source,
            reconfigured,
            context,
            engine,
            stream,
            writes,
            other,
            instance: None,
            retired: Vec::new(),
            next: 0,
        })
    }

    /// Outputs frames; the first one has number 0.
    pub fn decode(&mut self, job: &Decode) -> Result<()> {
        let size = self.instance.as_ref().map(|instance| (instance.info.width(), instance.info.height()));
        let changes = self.reconfigured.is_some() && size != Some((job.width, job.height));
        if self.instance.is_none() || job.anew || changes {
            if let (Some(element), Some(last)) = (&self.reconfigured, &self.instance) {
                let (last, writes) = (last.clone(), self.writes.clone());
                element.clear_at_change(Box::new(move || last.clear(&writes)));
            }
            self.retired.extend(self.instance.take().map(|instance| Arc::downgrade(&instance)));
            self.instance = Some(Arc::new(self.instance(job)?));
        }
        let instance = self.instance.clone().context("the decoder has no instance")?;
        let caps = instance.info.to_caps()?;
        let mut caps = caps.copy();
        caps.make_mut().set_features_simple(Some(gst::CapsFeatures::new([gst_cuda::CAPS_FEATURE])));
        self.source.set_caps(Some(&caps));
        for _ in 0..job.frames {
            let (memory, address) = self.surface(&instance)?;
            let _current = self.engine.push()?;
            if job.slow_us > 0 {
                let pause = Duration::from_micros(job.slow_us);
                self.writes.call(move || std::thread::sleep(pause))?;
            }
            // Writes in two halves, so that an unsynchronized reader can observe a torn frame.
            let half = instance.info.size() / 2;
            for start in [address, address + half as u64] {
                // SAFETY: both halves lie in a surface, which the memory keeps alive.
                unsafe { self.writes.fill(start, byte_of(self.next), half)? };
            }
            let mut buffer = gst::Buffer::new();
            let content = buffer.get_mut().context("the new buffer is not writable")?;
            content.append_memory(memory);
            let info = &instance.info;
            gst_video::VideoMeta::add_full(
                content,
                gst_video::VideoFrameFlags::empty(),
                info.format(),
                info.width(),
                info.height(),
                info.offset(),
                info.stride(),
            )?;
            content.set_pts(gst::ClockTime::from_mseconds(self.next));
            self.next += 1;
            self.source.push_buffer(buffer)?;
        }
        Ok(())
    }

    /// Waits for a free surface, in rotation.
    fn surface(&self, instance: &Arc<Instance>) -> Result<(gst::Memory, u64)> {
        let begin = Instant::now();
        loop {
            let count = instance.surfaces.len();
            for surface in instance.surfaces.iter().cycle().skip(self.next as usize % count).take(count) {
                if let Some(memory) = surface.reusable.lend(instance.clone(), true) {
                    return Ok((memory, surface.address));
                }
            }
            ensure!(begin.elapsed() < PATIENCE, "the decoder stalled: no surface became free");
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn instance(&self, job: &Decode) -> Result<Instance> {
        let info = VideoInfo::builder(VideoFormat::Nv12, job.width, job.height).build()?;
        let rules = memory::Rules { read_only: false, fixed_pool: true };
        let mut instance = Instance { surfaces: Vec::new(), info: info.clone(), _memory: Vec::new() };
        for _ in 0..job.surfaces {
            let mut memory =
                memory::allocate(&self.context, None, &info).context("cannot allocate CUDA memory")?;
            let layout = memory::Memory::of(&memory).context("the memory is not CUDA memory")?.info();
            let address = memory::map_writable(memory.get_mut().context("shared")?).context("map")?.address();
            let stream = if job.stale { &self.other } else { &self.stream };
            let reusable = Reusable::wrap(&self.context, Some(stream), &layout, address, rules);
            instance.info = layout;
            instance.surfaces.push(Surface { reusable: reusable.context("wrap")?, address });
            instance._memory.push(memory);
        }
        Ok(instance)
    }

    /// Drops the instance; returns how many instances still exist after the time limit.
    pub fn end(&mut self, patience: Duration) -> u64 {
        self.retired.extend(self.instance.take().map(|instance| Arc::downgrade(&instance)));
        let until = Instant::now() + patience;
        loop {
            self.retired.retain(|instance| instance.strong_count() > 0);
            if self.retired.is_empty() || Instant::now() > until {
                return self.retired.len() as u64;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
