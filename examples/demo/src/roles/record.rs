//! The recorder: every frame, encoded into a file.

use super::{
    pipeline::{self, Happening, STOP},
    read,
};
use crate::report::{self, Report};
use anyhow::{Context, Result};
use frameshare::StreamName;
use gst::{PadProbeData, PadProbeReturn, PadProbeType, prelude::*};
use std::path::Path;

/// Records the stream, until it ends or the director wants no more.
pub fn record(stream: &StreamName, file: &Path) -> Result<()> {
    let description = format!(
        "{} ! videoconvert ! x264enc ! matroskamux offset-to-zero=true ! filesink name=file",
        read::source(stream, "lossless")
    );
    let pipeline = gst::parse::launch(&description)?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().ok().context("it has several elements")?;
    let source = pipeline.by_name("source").context("it has a source")?;
    pipeline.by_name("file").context("it has a file")?.set_property("location", file);
    let pad = source.static_pad("src").context("a source has a pad")?;
    pad.add_probe(PadProbeType::BUFFER, |pad, info| {
        let Some(PadProbeData::Buffer(buffer)) = &info.data else { return PadProbeReturn::Ok };
        let caps = pad.current_caps().context("frames came before their caps");
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
    let on = |happening: Happening<'_>| {
        if let Happening::Word(STOP) = happening {
            // The encoder gives away what it has, and the file is whole.
            pipeline.send_event(gst::event::Eos::new());
        }
        Ok(())
    };
    pipeline::run(&pipeline, gst::State::Playing, on, || read::finished(&source))
}
