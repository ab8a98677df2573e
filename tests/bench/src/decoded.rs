// SPDX-License-Identifier: MIT OR Apache-2.0

//! Frames in GPU memory from NVIDIA's decoder.
//!
//! They are paced before the decoder and stamped at the sink. A stamp cannot be written into such a
//! frame, so frames are numbered: by their timestamps (a millisecond each), which cudaipc passes on
//! unchanged since neither pipeline's base time shifts them, and by frameshare's sequence numbers.

use crate::{
    case::{Run, Transport},
    kernel::Kernels,
    pace::Pace,
    sender::Pipeline,
    stamp::{Stamp, now},
    stamps::Stamps,
    watch::Watch,
};
use anyhow::{Context, Result, bail};
use gst::prelude::*;
use gstframeshare::FrameshareMeta;
use std::{
    collections::VecDeque,
    mem::ManuallyDrop,
    sync::{Arc, Mutex},
};

/// Starts a decoding pipeline. `watch` observes frames of a transport without readers.
pub fn send(run: &Run, pace: Pace, watch: Option<Watch>) -> Result<Pipeline> {
    let clip = run.clip.as_ref().context("which clip? --clips says where they are")?;
    let socket = &run.socket;
    let copying = |settings: &str| format!("framesharesink export=copy {settings} socket-path={socket}");
    let sink = match run.transport {
        Transport::Gpu | Transport::GpuPolling => format!("framesharesink socket-path={socket}"),
        Transport::GpuWritten => format!("framesharesink fence=event socket-path={socket}"),
        Transport::GpuPool => copying(""),
        Transport::GpuVmm => copying("memory=vmm fence=timeline"),
        Transport::GpuVmmEvent => copying("memory=vmm fence=event"),
        Transport::GpuMempool => copying("memory=pool"),
        Transport::GpuLegacy => copying("memory=legacy"),
        Transport::Cudaipc => format!("cudaipcsink address={socket}"),
        Transport::Decoder => "fakesink".into(),
        other => bail!("{} does not decode", other.name()),
    };
    // With one output surface, the default since GStreamer 1.26, the decoder copies each frame
    // into a buffer of downstream's pool. With 0 it allocates the number that downstream
    // requests, and pushes its own surfaces.
    let surfaces = if run.transport.copies() { 1 } else { 0 };
    let pipeline = launch(&format!(
        "multifilesrc location={} loop=true caps=video/x-h264,stream-format=byte-stream ! h264parse \
         ! nvh264dec name=decoder num-output-surfaces={surfaces} ! {sink} name=sink sync=false async=false enable-last-sample=false",
        clip.display()
    ))?;
    let part = |name| pipeline.by_name(name).context("the pipeline lacks a part");
    let (decoder, sink) = (part("decoder")?, part("sink")?);

    // The clips have no frames that refer to later ones, so decoding keeps the order.
    let pace = Mutex::new(pace);
    let on_the_way = Arc::new(Mutex::new(VecDeque::<Stamp>::new()));
    let stamped = on_the_way.clone();
    let pad = decoder.static_pad("sink").context("a decoder has a pad")?;
    pad.add_probe(gst::PadProbeType::BUFFER, move |_, info| {
        let stamp = pace.lock().expect("no probe panics").stamp();
        if let Some(buffer) = info.buffer_mut() {
            buffer.make_mut().set_pts(gst::ClockTime::from_mseconds(stamp.sequence));
        }
        stamped.lock().expect("no probe panics").push_back(stamp);
        gst::PadProbeReturn::Ok
    });
    let stamps = Stamps::create(socket)?;
    // The decoder reuses a frame after its last reference, even if the GPU still reads it.
    let sight = watch.map(|watch| Sight::new(watch, run.case.by_kernel, true));
    let pad = sink.static_pad("sink").context("a sink has a pad")?;
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        let Some(buffer) = info.buffer() else { return gst::PadProbeReturn::Ok };
        let number = buffer.pts().map(gst::ClockTime::mseconds);
        let mut on_the_way = on_the_way.lock().expect("no probe panics");
        while let Some(stamp) = on_the_way.front().copied().filter(|stamp| Some(stamp.sequence) <= number) {
            on_the_way.pop_front();
            if Some(stamp.sequence) == number {
                let stamp = Stamp { time: now(), ..stamp };
                stamps.note(stamp);
                sight.iter().for_each(|sight| sight.see(pad, buffer, Some(stamp)));
            }
        }
        gst::PadProbeReturn::Ok
    });
    pipeline.set_state(gst::State::Playing)?;
    Ok(Pipeline::new(pipeline, sink))
}

/// Reads frames. Latency ends when the source pushes a frame, or when a kernel has read it.
pub fn read(run: &Run, watch: Watch) -> Result<ManuallyDrop<gst::Pipeline>> {
    let socket = &run.socket;
    let (spin, fence) = (run.transport.spin(), run.transport.fence());
    let source = match run.transport {
        Transport::Cudaipc => format!("cudaipcsrc address={socket} io-mode=import"),
        _ => format!("framesharesrc socket-path={socket} policy=lossless spin={spin} fence={fence}"),
    };
    let pipeline = launch(&format!(
        "{source} name=source ! video/x-raw(memory:CUDAMemory) ! fakesink sync=false async=false \
         enable-last-sample=false"
    ))?;
    let pad = pipeline.by_name("source").and_then(|source| source.static_pad("src")).context("no source")?;
    let stamps = Stamps::open(socket)?;
    // cudaipcsrc releases a frame after its last reference, even if the GPU still reads it.
    let sight = Sight::new(watch, run.case.by_kernel, run.transport == Transport::Cudaipc);
    pad.add_probe(gst::PadProbeType::BUFFER, move |pad, info| {
        if let Some(buffer) = info.buffer() {
            sight.see(pad, buffer, number(buffer).and_then(|number| stamps.of(number)));
        }
        gst::PadProbeReturn::Ok
    });
    pipeline.set_state(gst::State::Playing)?;
    Ok(ManuallyDrop::new(pipeline))
}

/// Passes frames to a watch as they are pushed, or after a kernel has read them.
struct Sight {
    watch: Arc<Mutex<Watch>>,
    kernels: Option<Mutex<Kernels>>,
}

impl Sight {
    fn new(watch: Watch, by_kernel: bool, keeps_frames: bool) -> Self {
        let kernels = by_kernel.then(|| Mutex::new(Kernels::new(keeps_frames)));
        Self { watch: Arc::new(Mutex::new(watch)), kernels }
    }

    fn see(&self, pad: &gst::Pad, buffer: &gst::Buffer, stamp: Option<Stamp>) {
        let watch = self.watch.clone();
        let see = move || watch.lock().expect("no probe panics").see(stamp, &[]);
        let Some(kernels) = &self.kernels else { return see() };
        let reads = kernels.lock().expect("no probe panics").read(buffer, see);
        if let (Err(error), Some(element)) = (reads, pad.parent_element()) {
            gst::element_error!(element, gst::ResourceError::Read, ("{error:#}"));
        }
    }
}

fn number(buffer: &gst::BufferRef) -> Option<u64> {
    match buffer.meta::<FrameshareMeta>() {
        Some(meta) => Some(meta.sequence()),
        None => Some((buffer.pts()? + gst::ClockTime::from_useconds(500)).mseconds()),
    }
}

/// Starts a pipeline in which running time equals clock time.
fn launch(description: &str) -> Result<gst::Pipeline> {
    let pipeline = gst::parse::launch(description)?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().ok().context("not a pipeline")?;
    pipeline.set_start_time(gst::ClockTime::NONE);
    pipeline.set_base_time(gst::ClockTime::ZERO);
    Ok(pipeline)
}
