// SPDX-License-Identifier: MIT OR Apache-2.0

//! Exporting pipeline of a peer.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use gst::prelude::*;

use crate::decoder::Decoder;
use crate::job::{Command, Reply, Stats};
use crate::picture::checksum;
use crate::reconfigured::Reconfigured;

/// A pipeline with a framesharesink.
pub struct Playing {
    pipeline: gst::Pipeline,
    sink: gst::Element,
    /// Arrival of the first frame, in ns.
    first_frame_at: Arc<OnceLock<u64>>,
    decoder: Option<Decoder>,
}

/// Returns the time of the clock shared by all processes, in ns.
pub fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub fn parse(text: &str) -> Result<gst::Pipeline> {
    let pipeline = gst::parse::launch(text).with_context(|| text.to_owned())?;
    pipeline.downcast().ok().context("the description is not a pipeline")
}

/// Returns the error that a pipeline has posted, if any.
pub fn error_of(pipeline: &gst::Pipeline) -> Option<String> {
    let message = pipeline.bus()?.pop_filtered(&[gst::MessageType::Error])?;
    match message.view() {
        gst::MessageView::Error(error) => Some(error.error().to_string()),
        _ => None,
    }
}

impl Playing {
    pub fn start(text: &str) -> Result<Playing> {
        Reconfigured::register()?;
        let pipeline = parse(text)?;
        if pipeline.set_state(gst::State::Paused).is_err() {
            let why = error_of(&pipeline).unwrap_or_default();
            pipeline.set_state(gst::State::Null)?;
            bail!("{why}");
        }
        // playbin adds its sink after it has identified the media.
        let until = Instant::now() + Duration::from_secs(10);
        let sink = loop {
            if let Some(sink) = pipeline.by_name("sink") {
                break sink;
            }
            ensure!(Instant::now() < until, "the pipeline has no sink: {:?}", error_of(&pipeline));
            std::thread::sleep(Duration::from_millis(1));
        };
        let first_frame_at = Arc::new(OnceLock::new());
        let seen = first_frame_at.clone();
        if let Some(pad) = sink.static_pad("sink") {
            pad.add_probe(gst::PadProbeType::BUFFER, move |_, _| {
                seen.get_or_init(now);
                gst::PadProbeReturn::Remove
            });
        }
        Ok(Playing { pipeline, sink, first_frame_at, decoder: None })
    }

    /// Executes one command.
    pub fn work(&mut self, command: Command) -> Result<Reply> {
        match command {
            Command::Go => drop(self.pipeline.set_state(gst::State::Playing)?),
            Command::Pause => {
                self.pipeline.set_state(gst::State::Paused)?;
                let (paused, ..) = self.pipeline.state(gst::ClockTime::from_seconds(5));
                ensure!(
                    paused == Ok(gst::StateChangeSuccess::Success),
                    "the pipeline does not pause: {paused:?}"
                );
            }
            Command::AwaitEnd { ms } => self.await_end(ms)?,
            Command::Stats => return Ok(Reply::Stats(self.stats()?)),
            Command::Stop => {
                let stats = self.stats()?;
                self.pipeline.set_state(gst::State::Null)?;
                return Ok(Reply::Stats(stats));
            }
            Command::Decode(decode) => {
                let decoder = match &mut self.decoder {
                    Some(decoder) => decoder,
                    none => none.insert(Decoder::new(&self.pipeline)?),
                };
                decoder.decode(&decode)?;
                if let Some(error) = error_of(&self.pipeline) {
                    bail!("{error}");
                }
            }
            Command::EndOfStream => {
                let source =
                    self.pipeline.by_name("source").context("the pipeline has no element `source`")?;
                match source.downcast::<gst_app::AppSrc>() {
                    Ok(source) => drop(source.end_of_stream()?),
                    Err(source) => ensure!(
                        source.send_event(gst::event::Eos::new()),
                        "the end-of-stream event was not accepted"
                    ),
                }
            }
            Command::EndDecoder { ms } => {
                let decoder = self.decoder.as_mut().context("the pipeline has no decoder")?;
                return Ok(Reply::Number(decoder.end(Duration::from_millis(ms))));
            }
            Command::Renegotiate => {
                let pad = self.sink.static_pad("sink").context("the sink has no sink pad")?;
                ensure!(
                    pad.push_event(gst::event::Reconfigure::new()),
                    "the reconfigure event was not accepted"
                );
            }
            Command::AskForAllocation => {
                let pad = self.sink.static_pad("sink").context("the sink has no sink pad")?;
                let until = Instant::now() + Duration::from_secs(5);
                let caps = loop {
                    // Earlier caps may still be in transit.
                    match pad.current_caps() {
                        Some(caps) => break caps,
                        None => ensure!(Instant::now() < until, "the sink got no caps"),
                    }
                    std::thread::sleep(Duration::from_millis(1));
                };
                ensure!(
                    pad.query(&mut gst::query::Allocation::new(Some(&caps), true)),
                    "the allocation query was not answered"
                );
            }
            other => bail!("command not supported in this role: {other:?}"),
        }
        Ok(Reply::Done)
    }

    fn await_end(&self, ms: u64) -> Result<()> {
        let bus = self.pipeline.bus().context("the pipeline has no bus")?;
        let wanted = [gst::MessageType::Eos, gst::MessageType::Error];
        let message = bus.timed_pop_filtered(Some(gst::ClockTime::from_mseconds(ms)), &wanted);
        match message.as_ref().map(|message| message.view()) {
            Some(gst::MessageView::Eos(_)) => Ok(()),
            Some(gst::MessageView::Error(error)) => {
                bail!("{} ({})", error.error(), error.debug().unwrap_or_default())
            }
            _ => bail!("the pipeline has not reached its end after {ms} ms: {:?}", self.stats()?),
        }
    }

    /// A frame counts as published before `publish` returns and its path after: readers may get it
    /// in between.
    fn stats(&self) -> Result<Stats> {
        let until = Instant::now() + Duration::from_secs(1);
        loop {
            let stats = self.stats_of_now()?;
            if stats.paths.values().sum::<u64>() == stats.published || Instant::now() > until {
                return Ok(stats);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn stats_of_now(&self) -> Result<Stats> {
        let stats = self.sink.property::<gst::Structure>("stats");
        let part = |name: &str| stats.get::<gst::Structure>(name);
        let numbers = |part: gst::Structure| {
            part.iter().filter_map(|(name, value)| Some((name.to_string(), value.get().ok()?))).collect()
        };
        let pool = part("pool")?;
        let word =
            |structure: &gst::StructureRef, name: &str| structure.get::<String>(name).unwrap_or_default();
        let readers = stats.get::<gst::Array>("readers")?;
        let fences = readers.iter().filter_map(|reader| reader.get::<gst::Structure>().ok());
        let calls = frameshare_cuda::calls::snapshot();
        Ok(Stats {
            published: stats.get("published")?,
            first_frame_at: self.first_frame_at.get().copied(),
            paths: numbers(part("paths")?),
            reasons: numbers(part("copy-reasons")?),
            surfaces_held: stats.get::<u32>("surfaces-held")?.into(),
            private: pool.get("private-buffers")?,
            memory: format!("{}: {}", word(&pool, "memory"), word(&pool, "memory-why")),
            fences: fences
                .map(|fence| format!("{}: {}", word(&fence, "fence"), word(&fence, "fence-why")))
                .collect(),
            calls: calls.iter().map(|(call, count)| (call.to_owned(), count)).collect::<BTreeMap<_, _>>(),
        })
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        // A pipeline that cannot be stopped ends with the process.
        let _ = self.pipeline.set_state(gst::State::Null);
    }
}

/// Returns the checksums of the frames that arrive at the appsink `out`.
pub fn checksums(text: &str) -> Result<Vec<u64>> {
    let pipeline = parse(text)?;
    let out = pipeline.by_name("out").context("the pipeline has no element `out`")?;
    let out: gst_app::AppSink = out.downcast().ok().context("the element `out` is not an appsink")?;
    out.set_property("sync", false);
    pipeline.set_state(gst::State::Playing)?;
    let begin = Instant::now();
    let mut sums = Vec::new();
    while !out.is_eos() {
        if let Some(sample) = out.try_pull_sample(gst::ClockTime::from_mseconds(200)) {
            sums.push(checksum_of(&sample)?);
        }
        if let Some(error) = error_of(&pipeline) {
            bail!("{error}");
        }
        ensure!(begin.elapsed() < Duration::from_secs(60), "the pipeline has not ended after 60 s");
    }
    pipeline.set_state(gst::State::Null)?;
    Ok(sums)
}

/// Returns the checksum of a frame as mapped by the CPU.
pub fn checksum_of(sample: &gst::Sample) -> Result<u64> {
    let info = gst_video::VideoInfo::from_caps(sample.caps().context("the sample has no caps")?)?;
    let buffer = sample.buffer().context("the sample has no buffer")?;
    let planes = match buffer.meta::<gst_video::VideoMeta>() {
        Some(meta) => planes_of(meta.offset(), meta.stride()),
        None => planes_of(info.offset(), info.stride()),
    };
    let map = buffer.map_readable()?;
    checksum(&map, &info, &planes)
}

/// Returns the offset and stride of each plane.
pub fn planes_of(offsets: &[usize], strides: &[i32]) -> Vec<(usize, usize)> {
    offsets.iter().zip(strides).map(|(offset, stride)| (*offset, stride.unsigned_abs() as usize)).collect()
}
