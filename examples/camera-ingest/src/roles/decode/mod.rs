// SPDX-License-Identifier: MIT OR Apache-2.0

//! Decoding of cameras while other processes read their frames.

mod decoder;
#[cfg(test)]
mod tests;

use super::{
    Context,
    attempts::Attempts,
    pipeline::{End, Pipeline, exporting_sink},
    status::Status,
};
use crate::{
    config::{Camera, Decode},
    report::Condition,
};
use anyhow::{Context as _, Result, bail};
use decoder::{Decoder, bound, explain};
use gst::{PadProbeReturn, PadProbeType, prelude::*};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Interval of checks.
const TICK: Duration = Duration::from_millis(200);
/// Time without a reader after which decoding ends.
const LINGER: Duration = Duration::from_secs(2);
/// Time without a frame after which the camera counts as away.
const AWAY: Duration = Duration::from_secs(3);

/// Decodes a camera until the role is stopped.
pub fn run(context: &Context, camera: &Camera) {
    let status = Status::new(&context.reporter, &camera.name);
    let mut attempts = Attempts::new(context, &status, "");
    while !context.stop.is_set() {
        let mut begin = None;
        let Err(error) = export(context, camera, &status, &mut begin) else { return };
        attempts.failed(&error, begin);
    }
}

/// Exports the frames of a camera until the role is stopped.
fn export(context: &Context, camera: &Camera, status: &Status, begin: &mut Option<Instant>) -> Result<()> {
    let input = match camera.decode {
        Decode::Sub => camera.encoded_sub(),
        _ => camera.encoded(),
    };
    let pipeline = Pipeline::new();
    // A reader's name is its program, pipeline and element: "camera-ingest decode/cam0".
    pipeline.0.set_property("name", "decode");
    let sink = exporting_sink(&camera.frames(), &context.config.access)?;
    let bound = bound()?;
    pipeline.0.add_many([&bound, &sink])?;
    bound.link(&sink)?;
    wake_for_readers(&pipeline.0, &sink);
    let pad = bound.static_pad("sink").context("the filter has no pad")?;
    let frames = count(&pad);
    let ended = keep_open(&pipeline.0, &pad);
    pipeline.play()?;
    let mut work =
        Work { pipeline: &pipeline, pad, input, camera: &camera.name, decoder: None, read: Instant::now() };
    let (mut decoded, mut last) = (0, Instant::now());
    while !context.stop.is_set() {
        let end = pipeline.wait(TICK);
        let readers = sink.property::<u32>("num-clients");
        let was_on = work.decoder.is_some();
        work.follow(readers)?;
        if let Some(End::Failed(error)) = end {
            bail!(explain(error));
        }
        if ended.load(Ordering::Relaxed) {
            // An error is posted before the end of the stream is sent.
            match pipeline.wait(Duration::ZERO) {
                Some(End::Failed(error)) => bail!(explain(error)),
                _ => bail!("the stream {} ended", work.input),
            }
        }
        let Some(decoder) = &work.decoder else {
            status.set("", Condition::Off, "no reader");
            continue;
        };
        if !was_on {
            (decoded, last) = (frames.load(Ordering::Relaxed), Instant::now());
            status.set("", Condition::Waiting, format!("waiting for {}", work.input));
        }
        let count = frames.load(Ordering::Relaxed);
        if count > decoded {
            (decoded, last) = (count, Instant::now());
            begin.get_or_insert(last);
            let text = format!("{} of {}", decoder.name().unwrap_or_default(), work.input);
            status.set("", Condition::Running, text);
        } else if last.elapsed() > AWAY {
            status.set("", Condition::Waiting, format!("waiting for {}", work.input));
        }
    }
    Ok(())
}

/// The decoder in front of the exporter, while it is needed.
struct Work<'a> {
    pipeline: &'a Pipeline,
    pad: gst::Pad,
    input: String,
    /// Name of the camera.
    camera: &'a str,
    decoder: Option<Decoder>,
    /// When there was a reader last.
    read: Instant,
}

impl Work<'_> {
    /// Starts and stops the decoder.
    fn follow(&mut self, readers: u32) -> Result<()> {
        if readers > 0 {
            self.read = Instant::now();
        }
        match &self.decoder {
            None if readers > 0 => {
                self.decoder = Some(Decoder::start(&self.pipeline.0, &self.input, self.camera, &self.pad)?);
            }
            Some(_) if self.read.elapsed() > LINGER => self.decoder = None,
            _ => {}
        }
        Ok(())
    }
}

/// Ends the wait of the loop when a reader comes.
fn wake_for_readers(pipeline: &gst::Pipeline, sink: &gst::Element) {
    let pipeline = pipeline.downgrade();
    sink.connect("reader-added", false, move |_| {
        wake(&pipeline);
        None
    });
}

/// Ends the wait for messages.
fn wake(pipeline: &glib::WeakRef<gst::Pipeline>) {
    if let Some(bus) = pipeline.upgrade().and_then(|pipeline| pipeline.bus()) {
        // Fails only while the pipeline stops.
        let _ = bus.post(gst::message::Application::new(gst::Structure::new_empty("wake")));
    }
}

/// Keeps the end of the stream from the exporter: a source sends it after the failure of its
/// decoder, too, and the camera goes on. Returns whether there was one, which ends the wait of the
/// loop.
fn keep_open(pipeline: &gst::Pipeline, pad: &gst::Pad) -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let (pipeline, found) = (pipeline.downgrade(), ended.clone());
    pad.add_probe(PadProbeType::EVENT_DOWNSTREAM, move |_, info| {
        if info.event().is_none_or(|event| event.type_() != gst::EventType::Eos) {
            return PadProbeReturn::Ok;
        }
        found.store(true, Ordering::Relaxed);
        wake(&pipeline);
        PadProbeReturn::Handled
    });
    ended
}

/// Counts the buffers of a pad.
fn count(pad: &gst::Pad) -> Arc<AtomicU64> {
    let count = Arc::new(AtomicU64::new(0));
    let counter = count.clone();
    pad.add_probe(PadProbeType::BUFFER, move |_, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        PadProbeReturn::Ok
    });
    count
}
