// SPDX-License-Identifier: MIT OR Apache-2.0

//! Raw video: shared as frames, and encoded once.

use super::{number, stamp::Stamps};
use crate::{
    config::{Access, Camera, Source},
    roles::pipeline::{End, Pipeline, exporting_encoded_sink, exporting_sink, make},
};
use anyhow::{Context as _, Result, bail};
use gst::{PadProbeData, PadProbeReturn, PadProbeType, prelude::*};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Frames that wait for the encoder; older ones are not encoded.
const MAX_WAITING: u64 = 3;
/// Interval of key frames where the rate is not known.
const KEY_INTERVAL: u32 = 30;

/// Pipelines of a raw camera.
pub struct Raw {
    frames: Pipeline,
    encoder: Pipeline,
    count: Arc<AtomicU64>,
    sink: gst::Element,
}

impl Raw {
    pub fn start(camera: &Camera, access: &Access) -> Result<Self> {
        let (elements, rate) = match &camera.main {
            Source::Pattern { pattern, width, height, rate } => {
                (pattern_source(pattern, *width, *height, *rate)?, *rate)
            }
            Source::Device(path) => {
                let source = make("v4l2src")?;
                source.set_property("device", path.to_str().context("the device's path is not UTF-8")?);
                let filter = make("capsfilter")?;
                filter.set_property("caps", gst::Caps::new_empty_simple("video/x-raw"));
                (vec![source, filter], KEY_INTERVAL)
            }
            Source::Rtsp { .. } | Source::File(_) => bail!("no raw source"),
        };
        let (encoder, input) = encoder(&camera.encoded(), rate, access)?;
        let frames = Pipeline::new();
        let sink = exporting_sink(&camera.frames(), access)?;
        frames.0.add_many(&elements)?;
        frames.0.add(&sink)?;
        gst::Element::link_many(elements.iter().chain([&sink]))?;

        let count = Arc::new(AtomicU64::new(0));
        let is_numbered = matches!(camera.main, Source::Pattern { .. });
        let source = elements.first().and_then(|source| source.static_pad("src")).context("no source pad")?;
        prepare(&source, is_numbered, count.clone());
        forward(&sink.static_pad("sink").context("framesharesink has no pad")?, &frames.0, input);
        encoder.play()?;
        frames.play()?;
        Ok(Self { frames, encoder, count, sink })
    }

    /// Waits for the end of one of the pipelines; none after a short time.
    pub fn wait(&self, time: Duration) -> Option<End> {
        self.encoder.wait(Duration::ZERO).or_else(|| self.frames.wait(time))
    }

    /// Number of frames so far.
    pub fn frames(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn description(&self) -> Option<String> {
        let caps = self.sink.static_pad("sink")?.current_caps()?;
        let media = caps.structure(0)?.to_owned();
        let (width, height) = (media.get::<i32>("width").ok()?, media.get::<i32>("height").ok()?);
        Some(format!("raw {width}x{height}, encoded here for recording"))
    }
}

fn pattern_source(pattern: &str, width: u32, height: u32, rate: u32) -> Result<Vec<gst::Element>> {
    let source = make("videotestsrc")?;
    source.set_property("is-live", true);
    let patterns = source.find_property("pattern").map(|property| property.value_type());
    let known = patterns.and_then(glib::EnumClass::with_type);
    if known.is_none_or(|known| known.value_by_nick(pattern).is_none()) {
        bail!("videotestsrc has no pattern '{pattern}': gst-inspect-1.0 videotestsrc lists them");
    }
    source.set_property_from_str("pattern", pattern);
    let filter = make("capsfilter")?;
    let caps = gst::Caps::builder("video/x-raw")
        .field("format", "I420")
        .field("width", i32::try_from(width)?)
        .field("height", i32::try_from(height)?)
        .field("framerate", gst::Fraction::new(i32::try_from(rate)?, 1))
        .build();
    filter.set_property("caps", caps);
    Ok(vec![source, filter])
}

/// Numbers frames and puts their capture times on.
fn prepare(pad: &gst::Pad, is_numbered: bool, count: Arc<AtomicU64>) {
    let stamps = Stamps::new();
    pad.add_probe(PadProbeType::BUFFER, move |pad, info| {
        if let Some(PadProbeData::Buffer(buffer)) = &mut info.data {
            let number = count.fetch_add(1, Ordering::Relaxed);
            let buffer = buffer.make_mut();
            if is_numbered && let Some(caps) = pad.current_caps() {
                number::draw(buffer, &caps, number);
            }
            stamps.stamp(buffer);
        }
        PadProbeReturn::Ok
    });
}

/// Hands frames to the encoder as well, without a copy.
fn forward(pad: &gst::Pad, pipeline: &gst::Pipeline, input: gst_app::AppSrc) {
    let pipeline = pipeline.downgrade();
    pad.add_probe(PadProbeType::BUFFER, move |pad, info| {
        if let (Some(PadProbeData::Buffer(buffer)), Some(pipeline)) = (&info.data, pipeline.upgrade()) {
            let mut buffer = buffer.clone();
            let base = pipeline.base_time().unwrap_or_default();
            let pts = buffer.pts();
            buffer.make_mut().set_pts(pts.map(|time| time + base));
            let sample = gst::Sample::builder().buffer(&buffer);
            let sample = match &pad.current_caps() {
                Some(caps) => sample.caps(caps).build(),
                None => sample.build(),
            };
            // The error of the encoder is on its own bus.
            let _ = input.push_sample(&sample);
        }
        PadProbeReturn::Ok
    });
}

fn encoder(stream: &str, rate: u32, access: &Access) -> Result<(Pipeline, gst_app::AppSrc)> {
    let pipeline = Pipeline::new().with_monotonic_times();
    let input = gst_app::AppSrc::builder()
        .is_live(true)
        .format(gst::Format::Time)
        .max_buffers(MAX_WAITING)
        .leaky_type(gst_app::AppLeakyType::Downstream)
        .build();
    let encoder = make("x264enc")?;
    encoder.set_property_from_str("tune", "zerolatency");
    encoder.set_property_from_str("speed-preset", "superfast");
    encoder.set_property("key-int-max", rate);
    encoder.set_property("threads", 1u32);
    let filter = make("capsfilter")?;
    let form = "video/x-h264,stream-format=byte-stream,alignment=au";
    filter.set_property("caps", form.parse::<gst::Caps>()?);
    let sink = exporting_encoded_sink(stream, access)?;
    let (convert, parse) = (make("videoconvert")?, make("h264parse")?);
    parse.set_property("config-interval", -1);
    let elements = [input.upcast_ref(), &convert, &encoder, &parse, &filter, &sink];
    pipeline.0.add_many(elements)?;
    gst::Element::link_many(elements)?;
    Ok((pipeline, input))
}
