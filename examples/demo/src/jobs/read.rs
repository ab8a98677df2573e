// SPDX-License-Identifier: MIT OR Apache-2.0

//! Two readers that are applications: `framesharesrc`, and an appsink that passes the frames to the
//! program.

use super::{
    image,
    pipeline::{self, until_stopped},
};
use crate::report::{self, Frame, Report};
use anyhow::{Context, Result};
use frameshare::StreamName;
use gst::prelude::*;
use gstframeshare::FrameshareMeta;
use std::time::{Duration, Instant};

/// Time that readers wait for the exporter, which opens its file first, in ns.
const PATIENCE: i64 = 30_000_000_000;

/// Takes a checksum of every frame.
pub fn read_checksum(stream: &StreamName) -> Result<()> {
    read(stream, "lossless", |sample| {
        seen(sample.buffer().context("a sample without a buffer")?, caps_of(sample)?)
    })
}

/// Time between two small copies for the terminal.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

/// Scores the motion between frames, and copies a small one for the terminal now and then; reads
/// the latest frame after each one processed.
pub fn read_motion(stream: &StreamName) -> Result<()> {
    // Holds a frame, in place, until the next one.
    let mut last: Option<gst::Sample> = None;
    let (mut shrinker, mut shown) = (None, Instant::now() - SHOWN_EVERY);
    read(stream, "latest", move |sample| {
        let buffer = sample.buffer().context("a sample without a buffer")?;
        let now = image::open(buffer, caps_of(sample)?)?;
        let mut frame = seen(buffer, caps_of(sample)?)?;
        if let Some((buffer, caps)) = last.as_ref().and_then(|last| Some((last.buffer()?, last.caps()?))) {
            frame.motion = image::motion(&image::open(buffer, caps)?, &now).ok();
        }
        if shown.elapsed() >= SHOWN_EVERY {
            shown = Instant::now();
            let present = image::Shrinker::of(shrinker.take(), &now)?;
            report::send(&Report::Preview(present.copy(&now)?));
            shrinker = Some(present);
        }
        drop(now);
        last = Some(sample.clone());
        Ok(frame)
    })
}

/// Returns the source of a pipeline, with the settings of the demo's readers.
pub fn source(stream: &StreamName, policy: &str) -> String {
    format!("framesharesrc name=source stream={stream} policy={policy} connection-timeout={PATIENCE}")
}

/// Returns the report of a frame.
pub fn seen(buffer: &gst::BufferRef, caps: &gst::CapsRef) -> Result<Frame> {
    let meta = buffer.meta::<FrameshareMeta>().context("a frame without a FrameshareMeta")?;
    let delay = frameshare::monotonic_ns().saturating_sub(meta.published());
    let sum = image::checksum(&image::open(buffer, caps)?)?;
    Ok(Frame { sequence: meta.sequence(), lost_before: meta.lost_before(), sum, delay, motion: None })
}

/// Sends the last report of a reader.
pub fn finished(source: &gst::Element) {
    let figures = source.property::<gst::Structure>("stats");
    let figure = |name: &str| figures.get::<u64>(name).unwrap_or(0);
    report::send(&Report::Finished { copies: figure("copied-for-credit") + figure("copied-for-layout") });
}

fn read(
    stream: &StreamName,
    policy: &str,
    mut look: impl FnMut(&gst::Sample) -> Result<Frame> + Send + 'static,
) -> Result<()> {
    // Process frames on arrival, not at their timestamps. The last sample would hold a frame for no
    // use.
    let description =
        format!("{} ! appsink name=sink sync=false enable-last-sample=false", source(stream, policy));
    let pipeline = gst::parse::launch(&description)?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().ok().context("the description is not a pipeline")?;
    let source = pipeline.by_name("source").context("the pipeline has no source")?;
    let sink =
        pipeline.by_name("sink").and_downcast::<gst_app::AppSink>().context("the pipeline has no appsink")?;
    say_that_strides_are_understood(&sink);
    sink.set_callbacks(
        gst_app::AppSinkCallbacks::builder()
            .new_sample(move |sink| {
                let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
                match look(&sample) {
                    Ok(frame) => report::send(&Report::Read(frame)),
                    Err(error) => {
                        gst::element_error!(sink, gst::StreamError::Failed, ("{error:#}"));
                        return Err(gst::FlowError::Error);
                    }
                }
                Ok(gst::FlowSuccess::Ok)
            })
            .build(),
    );
    pipeline::run(&pipeline, gst::State::Playing, until_stopped, || finished(&source))
}

/// Adds GstVideoMeta to the allocation answer of an appsink. Without it, frames with padded rows
/// would be copied.
///
/// From GStreamer 1.24 on, the callback `propose_allocation` can do this.
fn say_that_strides_are_understood(sink: &gst_app::AppSink) {
    let Some(pad) = sink.static_pad("sink") else { return };
    pad.add_probe(gst::PadProbeType::QUERY_DOWNSTREAM, |_, info| {
        let Some(gst::PadProbeData::Query(query)) = &mut info.data else { return gst::PadProbeReturn::Ok };
        match query.view_mut() {
            gst::QueryViewMut::Allocation(query) => {
                query.add_allocation_meta::<gst_video::VideoMeta>(None);
                gst::PadProbeReturn::Handled
            }
            _ => gst::PadProbeReturn::Ok,
        }
    });
}

fn caps_of(sample: &gst::Sample) -> Result<&gst::CapsRef> {
    sample.caps().context("a sample without caps")
}
