// SPDX-License-Identifier: MIT OR Apache-2.0

//! Readers: one uses the engine, two are pipelines with `framesharesrc`.

use crate::{
    checksum,
    pipeline::{Pipeline, watch_frames},
    report::{self, Frame, PREVIEW, Report},
};
use anyhow::{Context, Result, ensure};
use frameshare::{
    Policy, StreamName, monotonic_ns,
    reader::{Config, Frames},
};
use gst::prelude::*;
use gstframeshare::FrameshareMeta;
use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// Maximum time that readers wait for the exporter, which opens its file first.
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes a checksum of every frame, without GStreamer.
pub fn read_checksum(stream: &StreamName) -> Result<()> {
    let config = Config::default().policy(Policy::Lossless).connection_timeout(Some(PATIENCE));
    for frame in Frames::open(stream.as_str(), config)? {
        let frame = frame?;
        let descriptor = frame.descriptor();
        report::send(&Report::Read(Frame {
            sequence: descriptor.sequence.0,
            lost_before: frame.lost_before(),
            delay: monotonic_ns().saturating_sub(descriptor.published),
            sum: checksum::of_frame(&frame)?,
        }));
    } // each frame's slot returns to the exporter at the end of its round
    report::send(&Report::Finished { copies: 0 });
    Ok(())
}

/// Makes small copies of the latest frames for the terminal.
pub fn view(stream: &StreamName) -> Result<()> {
    let (width, height) = PREVIEW;
    let pipeline = Pipeline::parse(&format!(
        "{} ! videoscale ! videoconvert ! video/x-raw,format=xRGB,width={width},height={height},pixel-aspect-ratio=1/1 \
         ! appsink name=sink sync=false",
        source(stream, Policy::Latest)
    ))?;
    let sink = pipeline.element("sink")?.downcast::<gst_app::AppSink>().ok().context("sink is no appsink")?;
    let new_sample = |sink: &gst_app::AppSink| {
        let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
        let bytes =
            sample.buffer().and_then(|buffer| buffer.map_readable().ok()).ok_or(gst::FlowError::Error)?;
        let pixels = bytes.as_chunks().0.iter().map(|pixel| u32::from_be_bytes(*pixel) & 0xff_ffff).collect();
        report::send(&Report::Preview(pixels));
        Ok(gst::FlowSuccess::Ok)
    };
    sink.set_callbacks(gst_app::AppSinkCallbacks::builder().new_sample(new_sample).build());
    read(&pipeline)
}

/// Encodes every frame into a file, until the stream ends.
pub fn record(stream: &StreamName, file: &Path) -> Result<()> {
    // More frames than the encoder keeps. With its lookahead it would keep some 50, more than an
    // exporter grants by default.
    let pipeline = Pipeline::parse(&format!(
        "{} max-held=16 ! videoconvert ! x264enc tune=zerolatency ! matroskamux offset-to-zero=true \
         ! filesink name=file",
        source(stream, Policy::Lossless)
    ))?;
    pipeline.element("file")?.set_property("location", file);
    read(&pipeline)
}

/// Returns the source of a pipeline.
fn source(stream: &StreamName, policy: Policy) -> String {
    let patience = PATIENCE.as_nanos();
    format!("framesharesrc name=source stream={stream} policy={policy} connection-timeout={patience}")
}

/// Runs a pipeline with a [`source`], and reports each of its frames.
fn read(pipeline: &Pipeline) -> Result<()> {
    let source = pipeline.element("source")?;
    watch_frames(&source.static_pad("src").context("framesharesrc has no pad")?, |buffer, caps| {
        let meta = buffer.meta::<FrameshareMeta>().context("a frame without a FrameshareMeta")?;
        report::send(&Report::Read(Frame {
            sequence: meta.sequence(),
            lost_before: meta.lost_before(),
            delay: monotonic_ns().saturating_sub(meta.published()),
            sum: checksum::of_buffer(buffer, caps)?,
        }));
        Ok(())
    });
    pipeline.run(1, |_| Ok(()))?;
    let figures = source.property::<gst::Structure>("stats");
    let figure = |name: &str| figures.get::<u64>(name).unwrap_or(0);
    report::send(&Report::Finished { copies: figure("copied-for-credit") + figure("copied-for-layout") });
    Ok(())
}

/// Decodes a recording completely and returns its number of frames.
pub fn play_back(file: &Path, interrupted: &AtomicBool) -> Result<u64> {
    gst::init()?;
    let pipeline = Pipeline::parse(
        "filesrc name=file ! decodebin force-sw-decoders=true ! fakesink name=sink sync=false",
    )?;
    pipeline.element("file")?.set_property("location", file);
    let sink = pipeline.element("sink")?;
    pipeline.run(1, |_| {
        ensure!(!interrupted.load(Relaxed), "interrupted");
        Ok(())
    })?;
    Ok(sink.property::<gst::Structure>("stats").get("rendered")?)
}
