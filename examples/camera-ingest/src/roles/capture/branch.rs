// SPDX-License-Identifier: MIT OR Apache-2.0

//! From the pads of a source to outlets: RTP depayloaders and parsers.

use super::outlet::Outlet;
use crate::roles::pipeline::make;
use anyhow::{Context as _, Result, bail};
use gst::prelude::*;
use std::sync::Arc;

/// Media of a pad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    Video,
    Audio,
    Other,
}

/// Returns the media of caps, of RTP too.
pub fn media_of(caps: &gst::Caps) -> Media {
    let Some(structure) = caps.structure(0) else { return Media::Other };
    let media = match structure.name().as_str() {
        "application/x-rtp" => structure.get::<&str>("media").unwrap_or_default(),
        name => name.split('/').next().unwrap_or_default(),
    };
    match media {
        "video" | "image" => Media::Video,
        "audio" => Media::Audio,
        _ => Media::Other,
    }
}

/// Parser and form of a media type; none: as it is.
fn parser(caps: &gst::Caps) -> Option<(&'static str, &'static str)> {
    Some(match caps.structure(0)?.name().as_str() {
        "video/x-h264" => ("h264parse", "video/x-h264,stream-format=byte-stream,alignment=au"),
        "video/x-h265" => ("h265parse", "video/x-h265,stream-format=byte-stream,alignment=au"),
        "video/x-av1" => ("av1parse", "video/x-av1,stream-format=obu-stream,alignment=tu"),
        "video/x-vp9" => ("vp9parse", "video/x-vp9,alignment=super-frame"),
        "image/jpeg" => ("jpegparse", "image/jpeg,parsed=true"),
        "audio/mpeg" => ("aacparse", "audio/mpeg,stream-format=raw"),
        "audio/x-opus" => ("opusparse", "audio/x-opus"),
        _ => return None,
    })
}

/// Links a pad of a source to an outlet. `is_paced`: units are due at their times.
pub fn link(pipeline: &gst::Pipeline, pad: &gst::Pad, outlet: Arc<Outlet>, is_paced: bool) -> Result<()> {
    let caps = pad.current_caps().unwrap_or_else(|| pad.query_caps(None));
    let mut elements = Vec::new();
    let mut media = caps.clone();
    if caps.structure(0).is_some_and(|structure| structure.name() == "application/x-rtp") {
        let depayloader = depayloader(&caps)?;
        let template = depayloader.static_pad("src").context("the depayloader has no pad")?;
        media = template.pad_template_caps();
        elements.push(depayloader);
    }
    if let Some((name, form)) = parser(&media) {
        let parser = make(name)?;
        if parser.has_property("config-interval") {
            // Readers that join find parameter sets before each key frame.
            parser.set_property("config-interval", -1);
        }
        elements.push(parser);
        let filter = make("capsfilter")?;
        filter.set_property("caps", form.parse::<gst::Caps>()?);
        elements.push(filter);
    }
    elements.push(sink(pipeline, outlet, is_paced));
    pipeline.add_many(&elements)?;
    gst::Element::link_many(&elements)?;
    for element in elements.iter().rev() {
        element.sync_state_with_parent()?;
    }
    let first = elements.first().and_then(|first| first.static_pad("sink")).context("no pad to link to")?;
    pad.link(&first).with_context(|| format!("cannot link {caps}"))?;
    Ok(())
}

/// Returns the depayloader of the highest rank.
fn depayloader(caps: &gst::Caps) -> Result<gst::Element> {
    let kind = gst::ElementFactoryType::DEPAYLOADER;
    let all = gst::ElementFactory::factories_with_type(kind, gst::Rank::MARGINAL);
    let fitting = all.iter().filter(|factory| factory.can_sink_all_caps(caps));
    let Some(factory) = fitting.max_by_key(|factory| factory.rank()) else {
        bail!("no element takes {caps}: install its GStreamer plugin");
    };
    Ok(factory.create().build()?)
}

fn sink(pipeline: &gst::Pipeline, outlet: Arc<Outlet>, is_paced: bool) -> gst::Element {
    let pipeline = pipeline.downgrade();
    let push = move |sink: &gst_app::AppSink| {
        let sample = sink.pull_sample().map_err(|_| gst::FlowError::Eos)?;
        let pipeline = pipeline.upgrade().ok_or(gst::FlowError::Flushing)?;
        outlet.push(&sample, pipeline.base_time().unwrap_or_default())
    };
    let callbacks = gst_app::AppSinkCallbacks::builder().new_sample(push).build();
    let sink = gst_app::AppSink::builder().sync(is_paced).max_buffers(4).callbacks(callbacks).build();
    sink.set_async(is_paced);
    sink.upcast()
}
