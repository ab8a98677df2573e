//! Two readers that are applications of their own: `framesharesrc`, and an appsink that hands them the frames.

use super::{
    picture,
    pipeline::{self, until_stopped},
};
use crate::report::{self, Frame, Report};
use anyhow::{Context, Result};
use frameshare::StreamName;
use gst::prelude::*;
use gstframeshare::FrameshareMeta;

/// How long readers wait for the exporter, which has to open its film first, in ns.
const PATIENCE: i64 = 30_000_000_000;

/// Takes a checksum of every frame.
pub fn read_checksum(stream: &StreamName) -> Result<()> {
    read(stream, "lossless", |sample| {
        seen(sample.buffer().context("a sample without a buffer")?, caps_of(sample)?)
    })
}

/// Looks at the latest frame, whenever it is done with the one before, and scores how much has changed.
pub fn read_motion(stream: &StreamName) -> Result<()> {
    // Keeps a frame, in place, until the next has come.
    let mut last: Option<gst::Sample> = None;
    read(stream, "latest", move |sample| {
        let buffer = sample.buffer().context("a sample without a buffer")?;
        let now = picture::open(buffer, caps_of(sample)?)?;
        let mut frame = seen(buffer, caps_of(sample)?)?;
        if let Some((buffer, caps)) = last.as_ref().and_then(|last| Some((last.buffer()?, last.caps()?))) {
            frame.motion = picture::motion(&picture::open(buffer, caps)?, &now).ok();
        }
        drop(now);
        last = Some(sample.clone());
        Ok(frame)
    })
}

/// The start of a pipeline that reads the stream in every way that the demo needs.
pub fn source(stream: &StreamName, policy: &str) -> String {
    format!("framesharesrc name=source stream={stream} policy={policy} connection-timeout={PATIENCE}")
}

/// What is to be reported of a frame.
pub fn seen(buffer: &gst::BufferRef, caps: &gst::CapsRef) -> Result<Frame> {
    let meta = buffer.meta::<FrameshareMeta>().context("a frame without its number")?;
    let delay = frameshare::monotonic_ns().saturating_sub(meta.published());
    let sum = picture::checksum(&picture::open(buffer, caps)?)?;
    Ok(Frame { sequence: meta.sequence(), lost_before: meta.lost_before(), sum, delay, motion: None })
}

/// The last report of a reader.
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
    // Frames are looked at when they come, not when they are due. The last sample would keep a frame for nobody.
    let description =
        format!("{} ! appsink name=sink sync=false enable-last-sample=false", source(stream, policy));
    let pipeline = gst::parse::launch(&description)?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().ok().context("it has two elements")?;
    let source = pipeline.by_name("source").context("it has a source")?;
    let sink = pipeline.by_name("sink").and_downcast::<gst_app::AppSink>().context("it has an appsink")?;
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

/// Without this word, frames with longer rows than needed would be copied for an appsink.
///
/// From GStreamer 1.24 on the callback `propose_allocation` does it.
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
