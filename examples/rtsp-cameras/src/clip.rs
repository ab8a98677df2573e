// SPDX-License-Identifier: MIT OR Apache-2.0

//! Encoding of a camera's video, before it is served.

use crate::{Camera, Codec, number};
use anyhow::{Context, Result, bail};
use gst::{MessageView, PadProbeData, PadProbeReturn, PadProbeType, prelude::*};
use std::path::Path;

/// An encoded video: units in decoding order, with the times of its encoder.
#[derive(Clone)]
pub struct Clip {
    pub caps: gst::Caps,
    pub units: Vec<gst::Buffer>,
    /// Duration of a frame.
    pub period: gst::ClockTime,
    /// Every fifth frame has five times this duration.
    pub is_variable: bool,
}

/// Encodes a clip, or this number of numbered frames, as a camera does: closed groups of pictures,
/// one each second.
pub fn encode(clip: Option<&Path>, camera: &Camera, frames: u32) -> Result<Clip> {
    let Camera { width, height, rate, codec, .. } = camera;
    let encoder = encoder(camera);
    let source = match clip {
        Some(_) => "filesrc name=file ! decodebin ! videoconvert ! videoscale ! videorate".to_owned(),
        None => format!("videotestsrc pattern=smpte num-buffers={frames}"),
    };
    let description = format!(
        "{source} ! capsfilter name=raw caps=video/x-raw,format=I420,width={width},height={height},framerate={rate}/1,pixel-aspect-ratio=1/1 \
         ! {encoder} key-int-max={rate} \
         ! {codec}parse config-interval=-1 ! video/x-{codec},stream-format=byte-stream,alignment=au ! appsink name=units sync=false"
    );
    let pipeline = gst::parse::launch(&description)?;
    let pipeline = pipeline.downcast::<gst::Pipeline>().ok().context("not a pipeline")?;
    let find = |name: &str| pipeline.by_name(name).with_context(|| format!("no element {name}"));
    match clip {
        Some(file) => find("file")?.set_property("location", file),
        None => draw_numbers(&find("raw")?)?,
    }
    let sink = find("units")?.downcast::<gst_app::AppSink>().ok().context("not an appsink")?;
    let result = collect(&pipeline, &sink);
    let _ = pipeline.set_state(gst::State::Null);
    let (caps, units) = result?;
    let usual = gst::ClockTime::SECOND / u64::from(*rate);
    let period = camera.every.map_or(usual, |seconds| gst::ClockTime::from_seconds(seconds.into()));
    Ok(Clip { caps, units, period, is_variable: camera.is_variable })
}

/// Returns the encoder of a camera, whose groups of pictures all have the same pattern.
fn encoder(camera: &Camera) -> String {
    let Camera { codec, b_frames, has_pyramid, .. } = camera;
    match (codec, b_frames) {
        (Codec::H264, 0) => "x264enc tune=zerolatency speed-preset=veryfast threads=2".to_owned(),
        (Codec::H264, _) => format!(
            "x264enc speed-preset=veryfast threads=2 bframes={b_frames} b-adapt=false b-pyramid={has_pyramid}"
        ),
        (Codec::H265, _) => format!(
            "x265enc speed-preset=ultrafast log-level=none option-string=bframes={b_frames}:b-adapt=0:b-pyramid={}:open-gop=0",
            u8::from(*has_pyramid)
        ),
    }
}

fn draw_numbers(filter: &gst::Element) -> Result<()> {
    let pad = filter.static_pad("src").context("no pad")?;
    let mut number = 0;
    let number = std::sync::Mutex::new(move || {
        number += 1;
        number - 1
    });
    pad.add_probe(PadProbeType::BUFFER, move |pad, info| {
        if let (Some(PadProbeData::Buffer(buffer)), Some(caps)) = (&mut info.data, pad.current_caps())
            && let Ok(mut next) = number.lock()
        {
            number::draw(buffer.make_mut(), &caps, next());
        }
        PadProbeReturn::Ok
    });
    Ok(())
}

fn collect(pipeline: &gst::Pipeline, sink: &gst_app::AppSink) -> Result<(gst::Caps, Vec<gst::Buffer>)> {
    let _ = pipeline.set_state(gst::State::Playing);
    let (mut caps, mut units) = (None, Vec::new());
    while let Ok(sample) = sink.pull_sample() {
        caps = sample.caps_owned().or(caps);
        units.extend(sample.buffer_owned());
    }
    let bus = pipeline.bus().context("the pipeline has no bus")?;
    if let Some(message) = bus.pop_filtered(&[gst::MessageType::Error])
        && let MessageView::Error(error) = message.view()
    {
        bail!("{}", error.error());
    }
    let caps = caps.filter(|_| !units.is_empty()).context("no frame in the clip")?;
    Ok((caps, units))
}
