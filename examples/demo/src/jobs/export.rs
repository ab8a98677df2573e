// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter: decodes the video, at its rate, into the frames of `framesharesink`.

use super::{
    image,
    pipeline::{self, Event, STOP},
    video::{self, Repeats},
};
use crate::report::{self, Exporter, Reader, Report};
use anyhow::{Context, Result, bail};
use frameshare::StreamName;
use gst::{PadProbeData, PadProbeReturn, PadProbeType, prelude::*};
use std::{path::Path, sync::Arc};

/// Command of the supervisor once all readers are connected.
pub const START: &str = "start";

/// Shares the video under the stream's name: opens the stream, waits for [`START`], and starts the
/// video.
pub fn export(video: &Path, stream: &StreamName, loops: u32) -> Result<()> {
    let pipeline = gst::Pipeline::new();
    let sink = gst::ElementFactory::make("framesharesink").property("stream", stream.as_str()).build()?;
    let pad = sink.static_pad("sink").context("framesharesink has no sink pad")?;
    let bus = pipeline.bus().context("the pipeline has no bus")?;
    let decoder = video::decoder(video, &pad)?;
    pipeline.add_many([&decoder, &sink])?;

    let repeats = Arc::new(Repeats::new(loops));
    repeats.watch(&pad, move || pipeline::post(&bus, video::REWIND));
    report_frames(&pad, &sink);

    let mut is_started = false;
    let on = |event: Event<'_>| {
        match event {
            Event::Tick => report_figures(&sink, &repeats),
            Event::Command(START) => {
                is_started = true;
                pipeline.set_state(gst::State::Playing)?;
            }
            Event::Command(video::REWIND) => video::wind_back(&pad),
            // Readers receive the end of the stream and finish their work.
            Event::Command(STOP) if is_started => repeats.cut(),
            Event::Command(STOP) => bail!("stopped before all readers were connected"),
            Event::Command(_) => {}
        }
        Ok(())
    };
    pipeline::run(&pipeline, gst::State::Paused, on, || report_figures(&sink, &repeats))
}

/// Reports the checksum of every frame at the sink, with its publication number.
///
/// Frames are published in order on this thread: the number is one more than that of the last
/// frame. A frame that the sink drops takes no number, and the report of the next frame replaces
/// its report.
fn report_frames(pad: &gst::Pad, sink: &gst::Element) {
    let sink = sink.downgrade();
    pad.add_probe(PadProbeType::BUFFER, move |pad, info| {
        let (Some(PadProbeData::Buffer(buffer)), Some(sink)) = (&info.data, sink.upgrade()) else {
            return PadProbeReturn::Ok;
        };
        let sum = pad
            .current_caps()
            .context("frames arrived before their caps")
            .and_then(|caps| image::checksum(&image::open(buffer, &caps)?));
        match sum {
            Ok(sum) => {
                report::send(&Report::Decoded { sequence: figure(&figures(&sink), "published") + 1, sum })
            }
            Err(error) => gst::element_error!(sink, gst::StreamError::Failed, ("{error:#}")),
        }
        PadProbeReturn::Ok
    });
}

fn report_figures(sink: &gst::Element, repeats: &Repeats) {
    let figures = figures(sink);
    let reasons = figures.get::<gst::Structure>("copy-reasons").ok();
    let pool = figures.get::<gst::Structure>("pool").ok();
    let of_pool = |name: &str| pool.as_ref().and_then(|pool| pool.get::<u32>(name).ok()).unwrap_or(0);
    let readers = figures.get::<gst::Array>("readers").ok();
    report::send(&Report::Exporter(Exporter {
        current_loop: repeats.current(),
        published: figure(&figures, "published"),
        copies: figure(&figures, "copies"),
        reasons: reasons
            .iter()
            .flat_map(|reasons| reasons.iter())
            .filter_map(|(name, count)| Some((name.to_string(), count.get().ok()?)))
            .filter(|(_, count)| *count > 0)
            .collect(),
        slots: of_pool("slots"),
        free_slots: of_pool("free-slots"),
        max_slots: of_pool("max-slots"),
        readers: readers.iter().flat_map(|readers| readers.iter()).filter_map(reader).collect(),
    }));
}

fn figures(sink: &gst::Element) -> gst::Structure {
    sink.property("stats")
}

fn figure(figures: &gst::StructureRef, name: &str) -> u64 {
    figures.get(name).unwrap_or(0)
}

fn reader(value: &glib::SendValue) -> Option<Reader> {
    let figures = value.get::<gst::Structure>().ok()?;
    Some(Reader {
        pid: figures.get("pid").ok()?,
        policy: figures.get("policy").ok()?,
        held: figures.get("held").ok()?,
        queued: figures.get("queued").ok()?,
        sent: figures.get("sent").ok()?,
        lost: figures.get("lost").ok()?,
        lag: figures.get("lag").ok()?,
    })
}
