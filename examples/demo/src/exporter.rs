// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporter: decodes the video, at its rate, into the frames of `framesharesink`.

use crate::{
    checksum,
    pipeline::{Pipeline, watch_frames},
    report::{self, Report},
};
use anyhow::{Context, Result, ensure};
use frameshare::StreamName;
use gst::{PadProbeReturn, PadProbeType, prelude::*};
use std::{
    io::BufRead,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
};

/// Shares the video under the stream's name.
///
/// A line on standard input starts the video, when all readers are connected. The end of the input
/// ends the stream, and all readers with it: also when the process on the other side was killed.
pub fn export(video: &Path, stream: &StreamName, loops: u32) -> Result<()> {
    // Hardware decoders use their own memory. The recorder of a busy machine ends late.
    let pipeline = Pipeline::parse(&format!(
        "filesrc name=file ! decodebin force-sw-decoders=true ! video/x-raw \
         ! framesharesink name=sink stream={stream} drain-timeout=600000000000"
    ))?;
    pipeline.element("file")?.set_property("location", video);
    let sink = pipeline.element("sink")?;
    let pad = sink.static_pad("sink").context("framesharesink has no sink pad")?;
    let is_over = Arc::new(AtomicBool::new(false));
    end_when_over(&pad, is_over.clone());

    // Frames are published in order on this thread: the number is one more than that of the last
    // frame. A frame that the sink drops takes no number, and the report of the next frame replaces
    // its report.
    let exporter = sink.downgrade();
    watch_frames(&pad, move |buffer, caps| {
        let sequence = 1 + exporter.upgrade().map_or(0, |sink| figure(&sink, "published"));
        report::send(&Report::Decoded { sequence, sum: checksum::of_buffer(buffer, caps)? });
        Ok(())
    });

    pipeline.preroll()?;
    let has_line = std::io::stdin().lock().lines().next().is_some();
    ensure!(has_line, "stopped before all readers were connected");
    thread::spawn(move || {
        std::io::stdin().lock().lines().for_each(drop);
        is_over.store(true, Relaxed);
    });
    pipeline.run(loops, |current| {
        report::send(&Report::Loop(current));
        Ok(())
    })?;
    let (published, copies) = (figure(&sink, "published"), figure(&sink, "copies"));
    report::send(&Report::Exported { published, copies });
    Ok(())
}

/// Ends the stream in place of its next frame once `is_over` is set. The streaming thread does it:
/// the pad is never free for other threads for long enough.
fn end_when_over(pad: &gst::Pad, is_over: Arc<AtomicBool>) {
    pad.add_probe(PadProbeType::BUFFER, move |pad, info| {
        if !is_over.load(Relaxed) {
            return PadProbeReturn::Ok;
        }
        pad.send_event(gst::event::Eos::new());
        info.flow_res = Err(gst::FlowError::Eos);
        PadProbeReturn::Handled
    });
}

fn figure(sink: &gst::Element, name: &str) -> u64 {
    sink.property::<gst::Structure>("stats").get(name).unwrap_or(0)
}
