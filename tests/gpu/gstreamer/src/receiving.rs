// SPDX-License-Identifier: MIT OR Apache-2.0

//! Reading pipeline of a peer.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use gst::prelude::*;
use gstframeshare::FrameshareMeta;

use crate::job::{Jump, Receive, Received};
use crate::playing::{checksum_of, now, parse};

/// Time limit for one frame.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a pipeline to the end of its stream, or to its first error.
pub fn receive(job: &Receive) -> Result<Received> {
    let pipeline = parse(&job.pipeline)?;
    let out = pipeline.by_name("out").context("the pipeline has no element `out`")?;
    let out: gst_app::AppSink = out.downcast().ok().context("the element `out` is not an appsink")?;
    out.set_property("sync", false);
    out.set_property("max-buffers", 2_u32);
    out.set_property("enable-last-sample", false);
    pipeline.set_state(gst::State::Playing)?;
    let mut last = Instant::now();
    let mut session = None;
    let mut received = Received::default();
    let mut held = Vec::new();
    let mut calls = None;
    let mut all_ended = false;
    while !(out.is_eos() && all_ended) && received.error.is_empty() {
        ensure!(last.elapsed() < PATIENCE, "no further frame arrived after {} frames", received.frames.len());
        if let Some(sample) = out.try_pull_sample(gst::ClockTime::from_mseconds(20)) {
            let buffer = sample.buffer().context("the sample has no buffer")?;
            last = Instant::now();
            let meta = buffer.meta::<FrameshareMeta>().context("the buffer has no FrameshareMeta")?;
            let sequence = meta.sequence();
            if session.replace(meta.session()) != Some(meta.session()) {
                let discont = buffer.flags().contains(gst::BufferFlags::DISCONT);
                received.jumps.push(Jump { index: received.frames.len(), at: now(), discont });
            }
            let on_gpu = gst_cuda::memory::Memory::of(buffer.peek_memory(0)).is_some();
            let caps = sample.caps().context("the sample has no caps")?;
            let named = caps.features(0).is_some_and(|features| features.contains(gst_cuda::CAPS_FEATURE));
            ensure!(
                named == on_gpu,
                "frame {sequence} has caps {caps}, but its being in CUDA memory is {on_gpu}"
            );
            received.on_gpu += u64::from(on_gpu);
            received.frames.push((sequence, checksum_of(&sample)?));
            if held.len() < job.hold {
                held.push((sequence, sample));
            }
            let count = received.frames.len() as u64;
            if job.counted.is_some_and(|(from, _)| from == count) {
                calls = Some(frameshare_cuda::calls::snapshot());
            }
            if let (Some((_, to)), Some(before)) = (job.counted, &calls)
                && to == count
            {
                let counted = frameshare_cuda::calls::snapshot().since(before);
                received.calls = counted.iter().map(|(call, count)| (call.to_owned(), count)).collect();
            }
        }
        let bus = pipeline.bus().context("the pipeline has no bus")?;
        let message = bus.pop_filtered(&[gst::MessageType::Eos, gst::MessageType::Error]);
        match message.as_ref().map(|message| message.view()) {
            Some(gst::MessageView::Eos(_)) => all_ended = true,
            Some(gst::MessageView::Error(error)) => received.error = error.error().to_string(),
            _ => {}
        }
    }
    // Held frames must be unchanged.
    for (sequence, sample) in held.drain(..) {
        let sum = checksum_of(&sample)?;
        ensure!(received.frames.contains(&(sequence, sum)), "frame {sequence} changed while it was held");
    }
    received.count(&pipeline);
    pipeline.set_state(gst::State::Null)?;
    Ok(received)
}

impl Received {
    /// Adds the statistics of the pipeline's sources.
    pub fn count(&mut self, pipeline: &gst::Pipeline) {
        for source in sources(pipeline) {
            let stats = source.property::<gst::Structure>("stats");
            let number = |name: &str| stats.get::<u64>(name).unwrap_or_default();
            self.received.push(number("received"));
            self.copied += number("copied-for-credit") + number("copied-for-layout");
            self.lost += number("lost");
        }
    }
}

fn sources(pipeline: &gst::Pipeline) -> Vec<gst::Element> {
    let elements = pipeline.iterate_elements().into_iter().filter_map(Result::ok);
    elements.filter(|element| element.type_().name() == "GstFrameshareSrc").collect()
}
