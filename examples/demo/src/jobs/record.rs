// SPDX-License-Identifier: MIT OR Apache-2.0

//! Recorder: encodes every frame into a file.

use super::{
    pipeline::{self, Event, STOP},
    read,
};
use crate::report::{self, Report};
use anyhow::{Context, Result};
use frameshare::StreamName;
use gst::{PadProbeData, PadProbeReturn, PadProbeType, prelude::*};
use std::path::Path;

/// More frames than the encoder keeps. With its lookahead it would keep some 50, more than an
/// exporter grants by default.
const HELD: u32 = 16;

/// Records the stream until it ends or the supervisor stops the job.
pub fn record(stream: &StreamName, file: &Path) -> Result<()> {
    let description = format!(
        "{} max-held={HELD} ! videoconvert ! x264enc tune=zerolatency ! matroskamux offset-to-zero=true ! filesink name=file",
        read::source(stream, "lossless")
    );
    let pipeline = gst::parse::launch(&description)?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().ok().context("the description is not a pipeline")?;
    let source = pipeline.by_name("source").context("the pipeline has no source")?;
    pipeline.by_name("file").context("the pipeline has no filesink")?.set_property("location", file);
    let pad = source.static_pad("src").context("the source has no pad")?;
    pad.add_probe(PadProbeType::BUFFER, |pad, info| {
        let Some(PadProbeData::Buffer(buffer)) = &info.data else { return PadProbeReturn::Ok };
        let caps = pad.current_caps().context("frames arrived before their caps");
        match caps.and_then(|caps| read::seen(buffer, &caps)) {
            Ok(frame) => report::send(&Report::Read(frame)),
            Err(error) => {
                if let Some(source) = pad.parent_element() {
                    gst::element_error!(source, gst::StreamError::Failed, ("{error:#}"));
                }
            }
        }
        PadProbeReturn::Ok
    });
    let on = |event: Event<'_>| {
        if let Event::Command(STOP) = event {
            // EOS makes the encoder flush its frames and completes the file.
            pipeline.send_event(gst::event::Eos::new());
        }
        Ok(())
    };
    pipeline::run(&pipeline, gst::State::Playing, on, || read::finished(&source))
}
